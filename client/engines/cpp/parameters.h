// The parameters of the network at hand. layers.h, which compiler.py writes for it, defines
//     using Layers = std::tuple<...>;  using Output = Box<classes, 1, 1>;
#pragma once
#include <tuple>

#include "conv.h"
#include "dense.h"
#include "smooth.h"

#include "layers.h"

// The namespace has no name here and in the files that include this one: a process loads one library for each network,
// and they must not share symbols.
namespace {

constexpr int CLASSES = Output::size;

template <int I>
constexpr int offset_of(bool native) {
    if constexpr (I == 0) return 0;
    else {
        using Layer = std::tuple_element_t<I - 1, Layers>;
        return offset_of<I - 1>(native) + (native ? Layer::weights : Layer::torch_size);
    }
}
constexpr int DEPTH = std::tuple_size_v<Layers>;
constexpr int WEIGHTS = offset_of<DEPTH>(true), TORCH_SIZE = offset_of<DEPTH>(false);
using First = std::tuple_element_t<0, Layers>;

// Calls pair(native index, torch index) for every parameter of the network.
template <int I = 0, class F>
void each_parameter(F pair) {
    if constexpr (I < DEPTH) {
        std::tuple_element_t<I, Layers>::each(
            [&](int native, int torch) { pair(offset_of<I>(true) + native, offset_of<I>(false) + torch); });
        each_parameter<I + 1>(pair);
    }
}

}  // namespace
