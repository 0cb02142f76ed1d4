// Convolution, with ReLU and 2x2 max-pooling fused into it.
#pragma once
#include <type_traits>

#include "conv_backward.h"
#include "conv_channels.h"
#include "conv_columns.h"
#include "conv_shape.h"

template <class IN, class OUT, int KY, int KX, int SY, int SX, bool BIAS, bool RELU, int POOL>
class Conv {
    using Shape = ConvShape<IN, OUT, KY, KX, SY, SX, BIAS, RELU, POOL>;
    // Lanes hold output channels or neighbouring columns of one output map: whichever wastes fewer.
    static constexpr bool BY_CHANNEL = ColumnLanes<Shape>::row_cost >= ChannelLanes<Shape>::row_cost;
    using Forward = std::conditional_t<BY_CHANNEL, ChannelLanes<Shape>, ColumnLanes<Shape>>;

  public:
    using In = IN;
    static constexpr int inputs = Shape::inputs, outputs = Shape::outputs, filter = Shape::filter;
    static constexpr int weights = Shape::weights, torch_size = outputs * (inputs * KY * KX + (BIAS ? 1 : 0));

    explicit Conv(int images)
        : in(size_t(images) * IN::stride), grad(size_t(images) * IN::stride),
          place_(size_t(images) * Forward::place_size) {}

    Buffer<float> in, grad;

    static int torch_index(int o, int i, int ky, int kx) { return ((o * inputs + i) * KY + ky) * KX + kx; }
    static int native_index(int o, int i, int ky, int kx) {
        return o * filter + ky * Shape::row_vecs * LANES + kx * inputs + i;
    }

    // Calls pair(native index, torch index) for every parameter.
    template <class F>
    static void each(F pair) {
        for (int o = 0; o < outputs; o++)
            for (int i = 0; i < inputs; i++)
                for (int ky = 0; ky < KY; ky++)
                    for (int kx = 0; kx < KX; kx++) pair(native_index(o, i, ky, kx), torch_index(o, i, ky, kx));
        if (BIAS)
            for (int o = 0; o < outputs; o++) pair(outputs * filter + o, outputs * inputs * KY * KX + o);
    }

    // Reads one image, channels outermost.
    template <class READ>
    void fill(int image, READ pixel) {
        float* to = in + size_t(image) * IN::stride;
        for (int c = 0; c < inputs; c++)
            for (int y = 0; y < IN::height; y++)
                for (int x = 0; x < IN::width; x++)
                    to[IN::at(y, x) + c] = pixel((c * IN::height + y) * IN::width + x);
    }

    void prepare(const float* w) { forward_.prepare(w); }

    void forward(const float*, int images, float* out) {
        for (int n = 0; n < images; n++)
            forward_.forward(in + size_t(n) * IN::stride, out + size_t(n) * OUT::stride,
                             place_ + size_t(n) * Forward::place_size);
    }

    // target += scale * gradient; target may be w itself, which is not read any more by then.
    template <bool FIRST>
    void backward(const float* w, float* target, float scale, int images, const float* out, float* grad_out) {
        backward_.clear();
        for (int n = 0; n < images; n++) {
            float* g = grad_out + size_t(n) * OUT::stride;
            if (RELU) mask_gradient<OUT>(out + size_t(n) * OUT::stride, g);
            size_t at = size_t(n) * IN::stride;
            backward_.template add_image<!FIRST>(w, in + at, grad + at, place_ + size_t(n) * Forward::place_size, g);
        }
        backward_.finish(target, scale);
    }

  private:
    ConvBackward<Shape, Forward> backward_;
    Buffer<int32_t> place_;
    Forward forward_;
};
