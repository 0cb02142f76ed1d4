// Vectors, buffers and boxes that the kernels share.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, ACCUMULATORS = 24;
#elif defined(__AVX__)
constexpr int LANES = 8, ACCUMULATORS = 12;
#elif defined(__aarch64__)
constexpr int LANES = 4, ACCUMULATORS = 24;
#else
constexpr int LANES = 4, ACCUMULATORS = 12;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef float UnalignedVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef int32_t UnalignedIntVec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
INLINE void store(int32_t* p, IntVec v) { *reinterpret_cast<UnalignedIntVec*>(p) = v; }

template <int... LANE>
INLINE Vec broadcast(float x, std::integer_sequence<int, LANE...>) { return Vec{(static_cast<void>(LANE), x)...}; }
INLINE Vec broadcast(float x) { return broadcast(x, std::make_integer_sequence<int, LANES>()); }

// Makes the compiler forget what it knows of a pointer: reusing loads of the last iteration costs more registers than
// it saves.
template <class T>
INLINE T* opaque(T* p) {
    asm("" : "+r"(p));
    return p;
}

template <int WIDTH, int... LANE>
INLINE Vec swap_neighbours(Vec v, std::integer_sequence<int, LANE...>) {
#if defined(__clang__)
    return __builtin_shufflevector(v, v, (LANE ^ WIDTH)...);
#else
    return __builtin_shuffle(v, IntVec{(LANE ^ WIDTH)...});
#endif
}

template <int WIDTH = LANES / 2>
INLINE float sum(Vec v) {
    v += swap_neighbours<WIDTH>(v, std::make_integer_sequence<int, LANES>());
    if constexpr (WIDTH == 1) return v[0];
    else return sum<WIDTH / 2>(v);
}

template <int COUNT, int... LANE>
INLINE Vec first_lanes(Vec v, std::integer_sequence<int, LANE...>) {
    return IntVec{(LANE < COUNT ? -1 : 0)...} ? v : Vec{};
}
template <int COUNT>
INLINE Vec first_lanes(Vec v) { return first_lanes<COUNT>(v, std::make_integer_sequence<int, LANES>()); }

// Written as "not below zero", so that NaN passes and can be detected.
INLINE Vec relu(Vec v) { return v < 0.0f ? Vec{} : v; }
INLINE float relu(float v) { return v < 0.0f ? 0.0f : v; }

// 1 unless the gradient is zero; on the bits, which is cheaper than a comparison that must mind NaN.
INLINE int alive(float g) {
    uint32_t bits;
    std::memcpy(&bits, &g, sizeof bits);
    return bits << 1 != 0;
}

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a > b ? a : b; }

// Numbers below 1e-38 become zero while this lives: they change no result that matters and are many times slower.
class NoDenormals {
  public:
#if defined(__SSE__)
    NoDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
    ~NoDenormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    NoDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t(1) << 24)));
    }
    ~NoDenormals() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    uint64_t saved_;
#else
    NoDenormals() {}
#endif
};

// Zeroed memory on a cache line, with slack behind it for loads that run over the end of a row.
template <class T>
class Buffer {
  public:
    explicit Buffer(size_t count) {
        size_t bytes = (count * sizeof(T) + 4 * 64 + 63) / 64 * 64;
        data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
        if (!data_) throw std::bad_alloc();
        std::memset(data_, 0, bytes);
    }
    Buffer(Buffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }
    operator T*() const { return data_; }

  private:
    T* data_;
};

// An activation of one image: height x width x channels, channels innermost, inside a border of zeros as wide as the
// padding of the layer that reads it. A flat vector is a 1 x 1 image.
template <int CHANNELS, int HEIGHT, int WIDTH, int PAD_Y = 0, int PAD_X = 0>
struct Box {
    static constexpr int channels = CHANNELS, height = HEIGHT, width = WIDTH, pad_y = PAD_Y, pad_x = PAD_X;
    static constexpr int row = (WIDTH + 2 * PAD_X) * CHANNELS;
    static constexpr int size = CHANNELS * HEIGHT * WIDTH;
    static constexpr int origin = PAD_Y * row + PAD_X * CHANNELS;
    static constexpr int stride = round_up((HEIGHT + 2 * PAD_Y) * row, LANES) + LANES;
    static constexpr int at(int y, int x) { return origin + y * row + x * CHANNELS; }
};

// Gradients flow where the output of a ReLU is not zero.
template <class B>
INLINE void mask_gradient(const float* out, float* grad) {
    for (int y = 0; y < B::height; y++)
        for (int i = 0; i < B::width * B::channels; i++) {
            int at = B::at(y, 0) + i;
            grad[at] = out[at] <= 0.0f ? 0.0f : grad[at];
        }
}
