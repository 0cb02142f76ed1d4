// Linear layers, stand-alone pooling and ReLU.
#pragma once
#include "simd.h"

// IN is the image that is flattened (channels innermost here, outermost in torch). Weights: [out][in], each row padded
// to whole vectors with zeros; then the biases.
template <class IN, class OUT, bool BIAS, bool RELU>
class Linear {
  public:
    using In = IN;
    static constexpr int inputs = IN::size, outputs = OUT::size, vecs = ceil_div(inputs, LANES), row = vecs * LANES;
    static constexpr int weights = round_up(outputs * row + (BIAS ? outputs : 0), LANES);
    static constexpr int torch_size = outputs * (inputs + (BIAS ? 1 : 0));

    explicit Linear(int images)
        : in(size_t(images) * IN::stride), grad(size_t(images) * IN::stride), scaled_(size_t(images) * outputs) {}

    Buffer<float> in, grad;

    static int torch_column(int i) {
        constexpr int pixels = IN::height * IN::width;
        return i % IN::channels * pixels + i / IN::channels;
    }

    template <class F>
    static void each(F pair) {
        for (int o = 0; o < outputs; o++)
            for (int i = 0; i < inputs; i++) pair(o * row + i, o * inputs + torch_column(i));
        if (BIAS)
            for (int o = 0; o < outputs; o++) pair(outputs * row + o, outputs * inputs + o);
    }

    template <class READ>
    void fill(int image, READ pixel) {
        float* to = in + size_t(image) * IN::stride;
        for (int i = 0; i < inputs; i++) to[i] = pixel(torch_column(i));
    }

    void prepare(const float*) {}

    void forward(const float* w, int images, float* out) {
        int n = 0;
        for (; n + 4 <= images; n += 4) forward_images<4>(w, n, out);
        for (; n + 2 <= images; n += 2) forward_images<2>(w, n, out);
        for (; n < images; n++) forward_images<1>(w, n, out);
    }

    template <bool FIRST>
    void backward(const float* w, float* target, float scale, int images, const float* out, float* grad_out) {
        for (int n = 0; n < images; n++) {
            float* g = grad_out + size_t(n) * OUT::stride;
            if (RELU) mask_gradient<OUT>(out + size_t(n) * OUT::stride, g);
            for (int o = 0; o < outputs; o++) scaled_[n * outputs + o] = scale * g[o];
        }
        if (images == 1) backward_images<1, !FIRST, true>(w, target, 0, grad_out);
        else if (images == 2) backward_images<2, !FIRST, true>(w, target, 0, grad_out);
        else if (images == 4) backward_images<4, !FIRST, true>(w, target, 0, grad_out);
        else {
            // The input gradients of all images need the weights from before the update.
            if (!FIRST) by_blocks<true, false>(w, target, images, grad_out);
            by_blocks<false, true>(w, target, images, grad_out);
        }
        if (BIAS)
            for (int n = 0; n < images; n++)
                for (int o = 0; o < outputs; o++) target[outputs * row + o] += scaled_[n * outputs + o];
    }

  private:
    template <int IMAGES>
    void forward_images(const float* w, int n, float* out) {
        constexpr int most_rows = least(outputs, most(1, least(8, 20 / IMAGES)));
        constexpr int rows = ceil_div(outputs, ceil_div(outputs, most_rows)), rest = outputs % rows;
        int o = 0;
        for (; o + rows <= outputs; o += rows) forward_rows<IMAGES, rows>(w, n, o, out);
        if constexpr (rest > 0) forward_rows<IMAGES, rest>(w, n, o, out);
    }

    template <int IMAGES, int ROWS>
    INLINE void forward_rows(const float* w, int n, int o, float* out) {
        const float* x = in + size_t(n) * IN::stride;
        Vec acc[ROWS][IMAGES] = {};
        for (int v = 0; v < vecs; v++) {
            Vec values[IMAGES];
            UNROLL for (int k = 0; k < IMAGES; k++) values[k] = load(x + size_t(k) * IN::stride + v * LANES);
            UNROLL for (int r = 0; r < ROWS; r++) {
                Vec wv = load(w + size_t(o + r) * row + v * LANES);
                UNROLL for (int k = 0; k < IMAGES; k++) acc[r][k] += wv * values[k];
            }
        }
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int k = 0; k < IMAGES; k++) {
                float total = sum(acc[r][k]) + (BIAS ? w[outputs * row + o + r] : 0.0f);
                out[size_t(n + k) * OUT::stride + o + r] = RELU ? relu(total) : total;
            }
    }

    template <bool DATA, bool WEIGHTS>
    void by_blocks(const float* w, float* target, int images, const float* grad_out) {
        int n = 0;
        for (; n + 4 <= images; n += 4) backward_images<4, DATA, WEIGHTS>(w, target, n, grad_out);
        for (; n + 2 <= images; n += 2) backward_images<2, DATA, WEIGHTS>(w, target, n, grad_out);
        for (; n < images; n++) backward_images<1, DATA, WEIGHTS>(w, target, n, grad_out);
    }

    template <int IMAGES, bool DATA, bool WEIGHTS>
    void backward_images(const float* w, float* target, int n, const float* grad_out) {
        constexpr int rows = least(outputs, most(1, ACCUMULATORS / 3 / IMAGES)), rest = outputs % rows;
        if (DATA)
            for (int k = 0; k < IMAGES; k++) std::memset(grad + size_t(n + k) * IN::stride, 0, row * sizeof(float));
        int o = 0;
        for (; o + rows <= outputs; o += rows) backward_rows<IMAGES, rows, DATA, WEIGHTS>(w, target, n, o, grad_out);
        if constexpr (rest > 0) backward_rows<IMAGES, rest, DATA, WEIGHTS>(w, target, n, o, grad_out);
    }

    // Walks along whole rows, which the prefetcher follows; inputs and their gradients stay in the first-level cache.
    template <int IMAGES, int ROWS, bool DATA, bool WEIGHTS>
    INLINE void backward_rows(const float* w, float* target, int n, int o, const float* grad_out) {
        Vec g[ROWS][IMAGES], scaled[ROWS][IMAGES];
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int k = 0; k < IMAGES; k++) {
                g[r][k] = broadcast(grad_out[size_t(n + k) * OUT::stride + o + r]);
                scaled[r][k] = broadcast(scaled_[(n + k) * outputs + o + r]);
            }
        for (int v = 0; v < vecs; v++) {
            Vec x[IMAGES], slope[IMAGES];
            UNROLL for (int k = 0; k < IMAGES; k++) {
                size_t at = size_t(n + k) * IN::stride + v * LANES;
                if (WEIGHTS) x[k] = load(in + at);
                if (DATA) slope[k] = load(grad + at);
            }
            UNROLL for (int r = 0; r < ROWS; r++) {
                size_t at = size_t(o + r) * row + v * LANES;
                if (DATA) {
                    Vec wv = load(w + at);
                    UNROLL for (int k = 0; k < IMAGES; k++) slope[k] += g[r][k] * wv;
                }
                if (WEIGHTS) {
                    Vec total = load(target + at);
                    UNROLL for (int k = 0; k < IMAGES; k++) total += scaled[r][k] * x[k];
                    store(target + at, total);
                }
            }
            if (DATA)
                UNROLL for (int k = 0; k < IMAGES; k++) store(grad + size_t(n + k) * IN::stride + v * LANES, slope[k]);
        }
    }

    Buffer<float> scaled_;
};

// A layer without parameters keeps its images as they come and is told where its gradients go.
template <class IN>
struct Plain {
    using In = IN;
    static constexpr int weights = 0, torch_size = 0;
    explicit Plain(int images) : in(size_t(images) * IN::stride), grad(size_t(images) * IN::stride) {}
    Buffer<float> in, grad;
    template <class F>
    static void each(F) {}
    template <class READ>
    void fill(int image, READ pixel) {
        float* to = in + size_t(image) * IN::stride;
        for (int c = 0; c < IN::channels; c++)
            for (int y = 0; y < IN::height; y++)
                for (int x = 0; x < IN::width; x++)
                    to[IN::at(y, x) + c] = pixel((c * IN::height + y) * IN::width + x);
    }
    void prepare(const float*) {}
};

template <class IN, class OUT>
struct Relu : Plain<IN> {
    using Plain<IN>::Plain;
    void forward(const float*, int images, float* out) {
        for (int n = 0; n < images; n++)
            for (int y = 0; y < IN::height; y++)
                for (int i = 0; i < IN::width * IN::channels; i++)
                    out[size_t(n) * OUT::stride + OUT::at(y, 0) + i] =
                        relu(this->in[size_t(n) * IN::stride + IN::at(y, 0) + i]);
    }
    template <bool FIRST>
    void backward(const float*, float*, float, int images, const float* out, float* grad_out) {
        for (int n = 0; n < images && !FIRST; n++)
            for (int y = 0; y < IN::height; y++)
                for (int i = 0; i < IN::width * IN::channels; i++) {
                    size_t at = size_t(n) * OUT::stride + OUT::at(y, 0) + i;
                    this->grad[size_t(n) * IN::stride + IN::at(y, 0) + i] = out[at] <= 0.0f ? 0.0f : grad_out[at];
                }
    }
};

template <class IN, class OUT, int KY, int KX, int SY, int SX, int PY, int PX>
struct Pool : Plain<IN> {
    explicit Pool(int images) : Plain<IN>(images), from_(size_t(images) * OUT::size) {}

    void forward(const float*, int images, float* out) {
        for (int n = 0; n < images; n++)
            for (int y = 0; y < OUT::height; y++)
                for (int x = 0; x < OUT::width; x++)
                    window(this->in + size_t(n) * IN::stride, y, x, out + size_t(n) * OUT::stride + OUT::at(y, x),
                           from_ + size_t(n) * OUT::size + (y * OUT::width + x) * OUT::channels);
    }

    template <bool FIRST>
    void backward(const float*, float*, float, int images, const float*, float* grad_out) {
        if (FIRST) return;
        std::memset(this->grad, 0, size_t(images) * IN::stride * sizeof(float));
        for (int n = 0; n < images; n++)
            for (int y = 0; y < OUT::height; y++)
                for (int x = 0; x < OUT::width; x++)
                    for (int c = 0; c < OUT::channels; c++) {
                        int from = from_[size_t(n) * OUT::size + (y * OUT::width + x) * OUT::channels + c];
                        float g = grad_out[size_t(n) * OUT::stride + OUT::at(y, x) + c];
                        this->grad[size_t(n) * IN::stride + from] += g;
                    }
    }

  private:
    static void window(const float* in, int y, int x, float* out, int32_t* from) {
        int top = most(0, y * SY - PY), left = most(0, x * SX - PX);
        int bottom = least(IN::height, y * SY - PY + KY), right = least(IN::width, x * SX - PX + KX);
        for (int c = 0; c < OUT::channels; c++) {
            out[c] = in[IN::at(top, left) + c];
            from[c] = IN::at(top, left) + c;
        }
        for (int yy = top; yy < bottom; yy++)
            for (int xx = left; xx < right; xx++)
                for (int c = 0; c < OUT::channels; c++) {
                    float value = in[IN::at(yy, xx) + c];
                    bool better = value > out[c] || value != value;
                    out[c] = better ? value : out[c];
                    from[c] = better ? IN::at(yy, xx) + c : from[c];
                }
    }

    Buffer<int32_t> from_;
};
