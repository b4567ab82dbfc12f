// A device that is not the CPU, for tests: it computes on the CPU and keeps its tensors there, but mixes with the
// tensors of the CPU as little as CUDA does. Errors of tensors that were left on another device show without a GPU.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

namespace {

constexpr auto kKind = c10::DeviceType::PrivateUse1;
const at::Device kDevice(kKind, 0);

// Memory of the device is memory of the CPU under another name.

struct Allocator final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, kDevice};
  }
  at::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, std::size_t bytes) const final { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

// One device with one stream, on which everything has happened when a call returns.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr auto static_type = kKind;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  at::DeviceType type() const override { return kKind; }
  at::Device exchangeDevice(at::Device) const override { return kDevice; }
  at::Device getDevice() const override { return kDevice; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::Stream getStream(at::Device d) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(at::Device d, int = 0) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(at::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  at::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const at::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const at::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = allocator.allocate(bytes);
    if (auto kept = std::min(storage.nbytes(), bytes)) std::memcpy(fresh.mutable_get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
Hooks hooks;
[[maybe_unused]] const int registered = (at::RegisterPrivateUse1HooksInterface(&hooks), 0);

bool on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kKind; }

// A tensor of one place over the memory of a tensor of the other, which it keeps alive.
at::Tensor over_memory_of(const at::Tensor& tensor, at::Device place, at::Allocator* owner, c10::DispatchKey key) {
  auto storage = tensor.storage();
  at::DataPtr data(
      storage.mutable_data(), new c10::Storage(storage), [](void* kept) { delete static_cast<c10::Storage*>(kept); },
      place);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), owner, true),
      c10::DispatchKeySet(key), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return over_memory_of(tensor, at::Device(at::kCPU), c10::GetCPUAllocator(), c10::DispatchKey::CPU);
}

at::Tensor back_on_device(const at::Tensor& tensor) {
  return over_memory_of(tensor, kDevice, &allocator, c10::DispatchKey::PrivateUse1);
}

// Indexing with [] moves index tensors to what is indexed.
bool takes_cpu_indices(const std::string& name) {
  for (const char* each : {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})
    if (name == std::string("aten::") + each) return true;
  return false;
}

// Computes any operator on the CPU. As on CUDA, a tensor of the CPU among those of the device is an error, except for
// scalars of pointwise operators and for indices.
void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const bool indexing = takes_cpu_indices(schema.name());
  const bool scalars = indexing || op.hasTag(at::Tag::pointwise);
  const auto first = stack->size() - schema.arguments().size();
  std::vector<std::pair<at::Tensor, at::Tensor>> given;  // tensors of the device with those of the CPU in their place
  bool makes = false;  // whether the device of the result is an argument
  auto moved = [&](const at::Tensor& tensor, bool in_list) -> at::Tensor {
    if (!on_device(tensor)) {
      TORCH_CHECK(
          !tensor.defined() || (tensor.dim() == 0 && scalars) || (in_list && indexing),
          "Expected all tensors to be on the same device, but found at least two devices, ", kDevice, " and ",
          tensor.device(), "! (in ", schema.name(), ")");
      return tensor;
    }
    for (auto& [old, alias] : given)
      if (old.is_same(tensor)) return alias;
    return given.emplace_back(tensor, on_cpu(tensor)).second;
  };
  for (size_t at = first; at < stack->size(); ++at) {
    auto& value = (*stack)[at];
    if (value.isTensor()) {
      value = moved(value.toTensor(), false);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(moved(tensor, true));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(moved(*tensor, true)) : std::nullopt);
      value = std::move(list);
    } else if (value.isDevice() && value.toDevice().type() == kKind) {
      makes = true;
      value = at::Device(at::kCPU);
    }
  }
  std::vector<std::vector<int64_t>> shapes;
  for (auto& [old, alias] : given) shapes.push_back(alias.sizes().vec());

  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);

  for (size_t at = 0; at < given.size(); ++at) {  // results that were written into a tensor may have another shape
    auto& [old, alias] = given[at];
    if (alias.sizes() == at::IntArrayRef(shapes[at]) && alias.storage().data() == old.storage().data()) continue;
    old.unsafeGetTensorImpl()->set_storage_keep_dtype(back_on_device(alias).storage());
    old.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
  if (given.empty() && !makes) return;
  auto back = [&](const at::Tensor& tensor) -> at::Tensor {
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    for (auto& [old, alias] : given)
      if (alias.is_same(tensor)) return old;
    for (auto& [old, alias] : given)
      if (alias.storage().is_alias_of(tensor.storage()))
        return at::native::as_strided_tensorimpl(old, tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return back_on_device(tensor);
  };
  for (size_t at = stack->size() - schema.returns().size(); at < stack->size(); ++at) {
    auto& value = (*stack)[at];
    if (value.isTensor()) {
      value = back(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(back(tensor));
      value = std::move(list);
    }
  }
}

at::Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  auto target = on_device(to) ? on_cpu(to) : to;
  target.copy_(on_device(from) ? on_cpu(from) : from);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_part(
    at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(
      self, std::move(storage), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_whole(at::Tensor& self, at::Storage storage) { return at::native::set_(self, std::move(storage)); }

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) { return at::native::set_tensor_(self, source); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Storage_storage_offset", &set_part);
  m.impl("set_.source_Tensor", &set_tensor);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // of CUDA's lists what language models and losses meet
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(log_softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(exp, fp32)
  KERNEL_PRIVATEUSEONE(log, fp32)
  KERNEL_PRIVATEUSEONE(pow, Tensor_Scalar, fp32)
  KERNEL_PRIVATEUSEONE(rsqrt, fp32)
  KERNEL_PRIVATEUSEONE(cat, promote)
  KERNEL_PRIVATEUSEONE(stack, promote)
}

}  // namespace
