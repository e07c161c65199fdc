/* random.cpp - devstream's generators as torch.Generator, and the operators that fill tensors with
   random numbers in stream order. */
#include "backend.h"

#include <ATen/DLConvertor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <limits>
#include <vector>

namespace devstream_torch {

namespace {

struct GeneratorImpl final : c10::GeneratorImpl {
    /** owned: the generator is destroyed with this object; a device's own one is not. */
    GeneratorImpl(c10::DeviceIndex index, ds_rng handle, bool is_owned)
        : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, index),
                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
          rng(handle), owned(is_owned) {
    }

    ~GeneratorImpl() override {
        if (owned && ds_rng_destroy(rng) < 0)
            TORCH_WARN(ds_error_get_last());
    }

    /** torch.Generator.manual_seed also sets the offset to 0. */
    void set_current_seed(uint64_t seed) override {
        check(ds_rng_set_seed(rng, seed));
    }

    uint64_t current_seed() const override {
        uint64_t seed;
        check(ds_rng_get_seed(rng, &seed));
        return seed;
    }

    uint64_t seed() override {
        uint64_t seed;
        check(ds_rng_reseed(rng, &seed));
        return seed;
    }

    void set_offset(uint64_t offset) override {
        check(ds_rng_set_offset(rng, offset));
    }

    uint64_t get_offset() const override {
        uint64_t offset;
        check(ds_rng_get_offset(rng, &offset));
        return offset;
    }

    c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
        at::Tensor state = at::empty({ DS_RNG_STATE_SIZE }, at::kByte);
        check(ds_rng_get_state(rng, state.data_ptr(), DS_RNG_STATE_SIZE));
        return state.getIntrusivePtr();
    }

    void set_state(const c10::TensorImpl &state) override {
        TORCH_CHECK(state.is_cpu() && state.is_contiguous() && state.dtype() == at::kByte,
                    "The state of a generator is a contiguous CPU tensor of bytes.");
        check(ds_rng_set_state(rng, state.data(), static_cast<size_t>(state.numel())));
    }

    GeneratorImpl *clone_impl() const override {
        ds_rng copy;
        check(ds_rng_clone(rng, &copy));
        return new GeneratorImpl(device().index(), copy, true);
    }

    ds_rng rng;
    bool owned;
};

/** Calls fill(rng, dtype, address, count, stream) for a tensor; a tensor with gaps is filled
    through a contiguous one. */
template <class Fill>
at::Tensor &fill_random(at::Tensor &self, const std::optional<at::Generator> &generator,
                        Fill fill) {
    if (self.numel() == 0)
        return self;
    const at::Generator &used =
        generator && generator->defined() ? *generator : default_generator(self.get_device());
    TORCH_CHECK(used.device() == self.device(), "The generator of ", used.device(),
                " cannot fill a tensor of ", self.device(), ".");
    at::Tensor target =
        self.is_contiguous() ? self : at::empty_like(self, at::MemoryFormat::Contiguous);
    DLDataType type = at::getDLDataType(self);
    check(fill(used.get<GeneratorImpl>()->rng, ds_dtype{ type.code, type.bits, type.lanes },
               target.data_ptr(), static_cast<size_t>(target.numel()), current_stream(self)));
    if (!target.is_same(self))
        self.copy_(target);
    return self;
}

using Generator = std::optional<at::Generator>;

at::Tensor &uniform_(at::Tensor &self, double from, double to, Generator generator) {
    return fill_random(self, generator, [=](auto rng, auto type, void *out, size_t n, auto stream) {
        return ds_rng_uniform(rng, type, out, n, from, to, stream);
    });
}

at::Tensor &normal_(at::Tensor &self, double mean, double deviation, Generator generator) {
    return fill_random(self, generator, [=](auto rng, auto type, void *out, size_t n, auto stream) {
        return ds_rng_normal(rng, type, out, n, mean, deviation, stream);
    });
}

at::Tensor &bernoulli_(at::Tensor &self, double p, Generator generator) {
    return fill_random(self, generator, [=](auto rng, auto type, void *out, size_t n, auto stream) {
        return ds_rng_bernoulli(rng, type, out, n, p, stream);
    });
}

at::Tensor &random_from(at::Tensor &self, int64_t from, std::optional<int64_t> to,
                        Generator generator) {
    TORCH_CHECK(at::isIntegralType(self.scalar_type(), true), "random_ of ", self.scalar_type(),
                " is not supported on this device.");
    int64_t limit = to.value_or(std::numeric_limits<int64_t>::max());
    return fill_random(self, generator, [=](auto rng, auto type, void *out, size_t n, auto stream) {
        return ds_rng_integers(rng, type, out, n, from, limit, stream);
    });
}

at::Tensor &random_to(at::Tensor &self, int64_t to, Generator generator) {
    return random_from(self, 0, to, std::move(generator));
}

/** torch.dropout: the mask comes from the device's default generator. */
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor &input, double p,
                                                  std::optional<bool> train) {
    at::Tensor mask = at::empty_like(input, at::kBool);
    if (!train.value_or(true) || p == 0)
        return { input.clone(), mask.fill_(true) };
    bernoulli_(mask, 1 - p, std::nullopt);
    return { input * mask * (p < 1 ? 1 / (1 - p) : 0), mask };
}

at::Tensor native_dropout_backward(const at::Tensor &grad, const at::Tensor &mask, double scale) {
    return grad * mask * scale;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("native_dropout", native_dropout);
    m.impl("native_dropout_backward", native_dropout_backward);
    m.impl("uniform_", uniform_);
    m.impl("normal_", normal_);
    m.impl("bernoulli_.float", bernoulli_);
    m.impl("random_.from", random_from);
    m.impl("random_.to", random_to);
}

} // namespace

const at::Generator &default_generator(c10::DeviceIndex index) {
    static const std::vector<at::Generator> generators = [] {
        int count;
        check(ds_device_get_count(DS_DEVICE_CPU, &count));
        std::vector<at::Generator> list;
        for (int i = 0; i < count; i++) {
            ds_rng rng;
            auto device = static_cast<c10::DeviceIndex>(i);
            check(ds_rng_get_default(to_device(device), &rng));
            list.push_back(at::make_generator<GeneratorImpl>(device, rng, false));
        }
        return list;
    }();
    return generators.at(static_cast<size_t>(index));
}

at::Generator new_generator(c10::DeviceIndex index) {
    ds_rng_desc desc = {};
    ds_rng rng;
    desc.device = to_device(index);
    check(ds_rng_create(&desc, &rng));
    return at::make_generator<GeneratorImpl>(index, rng, true);
}

} // namespace devstream_torch
