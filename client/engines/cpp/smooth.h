// GELU and average pooling, as layers of their own.
#pragma once
#include "dense.h"

// The error function, relative error below 4e-7: an odd rational function; beyond 4 it is 1 in float.
INLINE Vec error_function(Vec x) {
    x = x > 4.0f ? broadcast(4.0f) : x;
    x = x < -4.0f ? broadcast(-4.0f) : x;
    Vec s = x * x;
    Vec top = broadcast(-2.72614225801306e-10f);
    top = top * s + 2.77068142495902e-08f;
    top = top * s - 2.10102402082508e-06f;
    top = top * s - 5.69250639462346e-05f;
    top = top * s - 7.34990630326855e-04f;
    top = top * s - 2.95459980854025e-03f;
    top = top * s - 1.60960333262415e-02f;
    Vec bottom = broadcast(-1.45660718464996e-05f);
    bottom = bottom * s - 2.13374055278905e-04f;
    bottom = bottom * s - 1.68282697438203e-03f;
    bottom = bottom * s - 7.37332916720468e-03f;
    bottom = bottom * s - 1.42647390514189e-02f;
    return x * top / bottom;
}

// e to the power of x, for x up to 0: a polynomial between powers of two.
INLINE Vec exponential(Vec x) {
    // Below it the result is as good as nothing, and its power of two would be none.
    x = x < -87.0f ? broadcast(-87.0f) : x;
    constexpr float rounds = 12582912.0f;
    Vec power = x * 1.44269504f + rounds - rounds;
    Vec r = x - power * 0.693359375f + power * 2.12194440e-4f;
    Vec e = broadcast(1.9875691500e-4f);
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    IntVec bits = (__builtin_convertvector(power, IntVec) + 127) << 23;
    Vec scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return e * scale;
}

template <class IN, class OUT>
struct Gelu : Plain<IN> {
    using Plain<IN>::Plain;

    void forward(const float*, int images, float* out) {
        by_vectors(images, [&](size_t from, size_t to, int count) {
            Vec x = load(this->in + from);
            put(out + to, x * cumulated(x), count);
        });
    }

    template <bool FIRST>
    void backward(const float*, float*, float, int images, const float*, float* grad_out) {
        if (FIRST) return;
        by_vectors(images, [&](size_t from, size_t to, int count) {
            Vec x = load(this->in + from), density = exponential(-0.5f * x * x) * 0.39894228f;
            put(this->grad + from, load(grad_out + to) * (cumulated(x) + x * density), count);
        });
    }

  private:
    // The normal distribution up to x.
    static INLINE Vec cumulated(Vec x) { return 0.5f + 0.5f * error_function(x * 0.70710678f); }

    // Calls part(place in IN, place in OUT, count) for parts of rows: what lies behind a row may be a border, or the next.
    template <class F>
    static INLINE void by_vectors(int images, F part) {
        constexpr int length = IN::width * IN::channels;
        for (int n = 0; n < images; n++)
            for (int y = 0; y < IN::height; y++)
                for (int i = 0; i < length; i += LANES)
                    part(size_t(n) * IN::stride + IN::at(y, 0) + i, size_t(n) * OUT::stride + OUT::at(y, 0) + i,
                         least(LANES, length - i));
    }

    static INLINE void put(float* to, Vec v, int count) {
        if (count == LANES) store(to, v);
        else std::memcpy(to, &v, size_t(count) * sizeof(float));
    }
};

template <class IN, class OUT, int KY, int KX, int SY, int SX>
struct Average : Plain<IN> {
    using Plain<IN>::Plain;
    static constexpr float share = 1.0f / (KY * KX);

    void forward(const float*, int images, float* out) {
        by_windows(images, [&](size_t to, size_t first) {
            for (int c = 0; c < OUT::channels; c++) {
                float total = 0.0f;
                for (int y = 0; y < KY; y++)
                    for (int x = 0; x < KX; x++) total += this->in[first + y * IN::row + x * IN::channels + c];
                out[to + c] = total * share;
            }
        });
    }

    template <bool FIRST>
    void backward(const float*, float*, float, int images, const float*, float* grad_out) {
        if (FIRST) return;
        std::memset(this->grad, 0, size_t(images) * IN::stride * sizeof(float));
        by_windows(images, [&](size_t to, size_t first) {
            for (int y = 0; y < KY; y++)
                for (int x = 0; x < KX; x++)
                    for (int c = 0; c < OUT::channels; c++)
                        this->grad[first + y * IN::row + x * IN::channels + c] += share * grad_out[to + c];
        });
    }

  private:
    // Calls window(place in OUT, place of its first pixel in IN).
    template <class F>
    static INLINE void by_windows(int images, F window) {
        for (int n = 0; n < images; n++)
            for (int y = 0; y < OUT::height; y++)
                for (int x = 0; x < OUT::width; x++)
                    window(size_t(n) * OUT::stride + OUT::at(y, x), size_t(n) * IN::stride + IN::at(y * SY, x * SX));
    }
};
