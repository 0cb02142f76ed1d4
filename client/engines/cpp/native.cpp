// The functions that native.py calls.
#include "order.h"

// models: (chains, parameters); losses: (chains, clients). out and train_losses are null where clients only judge.
extern "C" int perennial_run(int chains, const float* models, const float* lrs, int clients, const void* work,
                             const float* pixels, int threads, float* out, double* train_losses, double* losses) {
    const Work* clients_work = static_cast<const Work*>(work);
    for (int k = 0; k < clients; k++)
        if (Status status = check(clients_work[k])) return status;
    try {
        Order order(chains, models, lrs, clients, clients_work, train_losses, losses);
        order.run(pixels, threads, out != nullptr);
        if (out) order.mean(out);
    } catch (const std::exception&) {
        return NO_MEMORY;
    }
    return OK;
}

// out: one byte a judged row of the only client.
extern "C" int perennial_right(const float* model, const void* work, const float* pixels, uint8_t* out) {
    const Work& client = *static_cast<const Work*>(work);
    if (Status status = check(client)) return status;
    try {
        NoDenormals here;
        Buffer<float> w(WEIGHTS);
        each_parameter([&](int native, int torch) { w[native] = model[torch]; });
        Network(pixels).right(w, client, out);
    } catch (const std::exception&) {
        return NO_MEMORY;
    }
    return OK;
}

extern "C" int perennial_parameters() { return TORCH_SIZE; }
