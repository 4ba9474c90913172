// SPDX-License-Identifier: Apache-2.0
//
// The device "vcuda" of PyTorch: tensors whose memory is the simulated
// driver's (tests/sim). Whatever is computed is computed on the host and
// copied back, in the order of the thread's current stream; memory that is
// let go of is given again at once, as by the caching allocator of torch.cuda.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 16;

// ---- the driver ----

void *symbol(const char *name)
{
	static void *library = dlopen(getenv("SHARDKEEP_LIBCUDA"), RTLD_NOW);
	void *f = library ? dlsym(library, name) : nullptr;

	TORCH_CHECK(f, "no ", name, " in $SHARDKEEP_LIBCUDA");
	return f;
}

template <class... A> void call(const char *name, A... a)
{
	auto f = reinterpret_cast<unsigned (*)(A...)>(symbol(name));
	unsigned r = f(a...);

	TORCH_CHECK(!r, name, ": ", r);
}

thread_local int device;
thread_local std::array<void *, kDevices> streams;

int count()
{
	static int n = [] {
		int there = 0;

		call("cuInit", 0u);
		call("cuDeviceGetCount", &there);
		return there;
	}();
	return n;
}

void use(int which)
{
	static std::mutex lock;
	static std::array<void *, kDevices> contexts;
	std::lock_guard<std::mutex> hold(lock);

	TORCH_CHECK(which < count(), "no vcuda:", which);
	if (!contexts[which])
		call("cuDevicePrimaryCtxRetain", &contexts[which], which);
	call("cuCtxSetCurrent", contexts[which]);
}

void in(const at::Tensor &t)
{
	use(t.device().index());
}

// ---- memory ----

std::mutex memory_lock;
std::multimap<std::pair<int, size_t>, unsigned long long> spare;
std::map<void *, std::pair<int, size_t>> taken;

void give_back(void *ptr)
{
	std::lock_guard<std::mutex> hold(memory_lock);
	auto it = taken.find(ptr);

	if (it == taken.end())
		return;
	spare.emplace(it->second, (unsigned long long)(uintptr_t)ptr);
	taken.erase(it);
}

void *take(int which, size_t bytes)
{
	unsigned long long ptr;
	std::lock_guard<std::mutex> hold(memory_lock);
	auto it = spare.find({ which, bytes });

	if (it != spare.end()) {
		ptr = it->second;
		spare.erase(it);
	} else {
		use(which);
		call("cuMemAlloc_v2", &ptr, bytes);
	}
	taken[(void *)ptr] = { which, bytes };
	return (void *)ptr;
}

struct Memory final : c10::Allocator {
	c10::DataPtr allocate(size_t bytes) override
	{
		void *ptr = bytes ? take(device, bytes) : nullptr;

		return { ptr, ptr, &give_back, { kType, (char)device } };
	}
	c10::DeleterFnPtr raw_deleter() const override
	{
		return &give_back;
	}
	void copy_data(void *to, const void *from, size_t n) const override
	{
		use(device);
		call("cuMemcpyDtoDAsync_v2", (unsigned long long)to,
		     (unsigned long long)from, n, streams[device]);
	}
};

Memory memory;
REGISTER_ALLOCATOR(kType, &memory);

// ---- devices, without streams of the framework ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
	c10::DeviceType type() const override { return kType; }
	c10::Device exchangeDevice(c10::Device d) const override
	{
		c10::Device was = getDevice();

		setDevice(d);
		return was;
	}
	c10::Device getDevice() const override
	{
		return { kType, (char)device };
	}
	void setDevice(c10::Device d) const override
	{
		if (d.index() >= 0)
			device = d.index();
	}
	void uncheckedSetDevice(c10::Device d) const noexcept override
	{
		setDevice(d);
	}
	c10::Stream getStream(c10::Device d) const noexcept override
	{
		return c10::Stream(c10::Stream::DEFAULT, d);
	}
	c10::Stream exchangeStream(c10::Stream s) const noexcept override
	{
		return s;
	}
	c10::DeviceIndex deviceCount() const noexcept override
	{
		return (char)count();
	}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
	// Torch 2.6 has nothing that these override.
	bool isBuilt() const { return true; }
	bool isAvailable() const { return true; }
	bool hasPrimaryContext(c10::DeviceIndex) const override
	{
		return true;
	}
	c10::DeviceIndex deviceCount() const override
	{
		return (char)count();
	}
	c10::DeviceIndex getCurrentDevice() const override { return device; }
	void setCurrentDevice(c10::DeviceIndex d) const override
	{
		device = d;
	}
	c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override
	{
		int was = device;

		device = d < 0 ? device : d;
		return was;
	}
	c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override
	{
		return exchangeDevice(d);
	}
	void resizePrivateUse1Bytes(const c10::Storage &s,
				    size_t n) const override
	{
		c10::StorageImpl *impl = s.unsafeGetStorageImpl();
		size_t both = std::min(n, impl->nbytes());
		int was = exchangeDevice(s.device().index());
		c10::DataPtr to = memory.allocate(n);

		if (both)
			memory.copy_data(to.get(), s.data(), both);
		impl->set_data_ptr_noswap(std::move(to));
		impl->set_nbytes(n);
		device = was;
	}
};

Hooks hooks;
bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// ---- copies ----

void settle(const at::Tensor &t)
{
	call("cuStreamSynchronize", streams[t.device().index()]);
}

// All of its storage, on the host, seen as the tensor sees it.
at::Tensor host(const at::Tensor &t)
{
	size_t n = t.storage().nbytes();
	at::Tensor bytes = at::empty({ (int64_t)n }, at::kByte);

	if (n) {
		in(t);
		call("cuMemcpyDtoHAsync_v2", bytes.mutable_data_ptr(),
		     (unsigned long long)t.storage().data(), n,
		     streams[t.device().index()]);
		settle(t);
	}
	return at::empty({ 0 }, t.options().device(at::kCPU))
		.set_(bytes.storage(), t.storage_offset(), t.sizes(),
		      t.strides());
}

void put(const at::Tensor &t, const at::Tensor &from)
{
	size_t n = from.storage().nbytes();

	if (!n)
		return;
	in(t);
	call("cuMemcpyHtoDAsync_v2", (unsigned long long)t.storage().data(),
	     from.storage().data(), n, streams[t.device().index()]);
	settle(t);
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool)
{
	at::Tensor here = from.is_cpu() ? from : host(from);

	if (to.is_cpu()) {
		to.copy_(here);
		return to;
	}
	at::Tensor there = host(to);

	there.copy_(here);
	put(to, there);
	return to;
}

at::Tensor copy_and_resize(const at::Tensor &from, const at::Tensor &to)
{
	if (to.sizes() != from.sizes())
		to.resize_(from.sizes());
	return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor &t)
{
	return host(t).item();
}

// ---- making tensors ----

using Opt = std::optional<int64_t>;
const c10::DispatchKeySet keys{ c10::DispatchKey::PrivateUse1 };

struct On {
	explicit On(std::optional<c10::Device> d) : was(device)
	{
		if (d && d->index() >= 0)
			device = d->index();
	}
	~On() { device = was; }
	int was;
};

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
		 std::optional<c10::Layout>, std::optional<c10::Device> d,
		 std::optional<bool>,
		 std::optional<c10::MemoryFormat> format)
{
	On on(d);

	return at::detail::empty_generic(size, &memory, keys,
					 c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
			 std::optional<c10::ScalarType> dtype,
			 std::optional<c10::Layout>,
			 std::optional<c10::Device> d, std::optional<bool>)
{
	On on(d);

	return at::detail::empty_strided_generic(
		size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor &t, c10::IntArrayRef size,
		      c10::IntArrayRef stride, Opt offset)
{
	return at::native::as_strided_tensorimpl(t, size, stride, offset);
}

const at::Tensor &resize(const at::Tensor &t, c10::IntArrayRef size,
			 std::optional<c10::MemoryFormat>)
{
	size_t n = t.itemsize();

	for (auto s : size)
		n *= s;
	if (n > t.storage().nbytes())
		hooks.resizePrivateUse1Bytes(t.storage(), n);
	t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
	return t;
}

at::Tensor view(const at::Tensor &t, c10::IntArrayRef size)
{
	return at::native::view(t, size);
}

at::Tensor alias(const at::Tensor &t, c10::IntArrayRef size,
		 c10::IntArrayRef stride)
{
	return at::native::_reshape_alias(t, size, stride);
}

at::Tensor &set(at::Tensor &t, c10::Storage from, int64_t offset,
		c10::IntArrayRef size, c10::IntArrayRef stride)
{
	t.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(from));
	t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
	return t;
}

at::Tensor &set_to_tensor(at::Tensor &t, const at::Tensor &from)
{
	return set(t, from.storage(), from.storage_offset(), from.sizes(),
		   from.strides());
}

at::Tensor &set_to_storage(at::Tensor &t, c10::Storage from)
{
	int64_t n = (int64_t)(from.nbytes() / t.itemsize());

	return set(t, std::move(from), 0, { n }, { 1 });
}

void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack)
{
	at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
	m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
	m.impl("empty.memory_format", empty);
	m.impl("empty_strided", empty_strided);
	m.impl("as_strided", as_strided);
	m.impl("resize_", resize);
	m.impl("view", view);
	m.impl("_reshape_alias", alias);
	m.impl("_copy_from", copy_from);
	m.impl("_copy_from_and_resize", copy_and_resize);
	m.impl("_local_scalar_dense", local_scalar);
	m.impl("set_.source_Tensor", set_to_tensor);
	m.impl("set_.source_Storage", set_to_storage);
	m.impl("set_.source_Storage_storage_offset", set);
}

// ---- gates: what comes after them on a stream waits ----

std::mutex gate_lock;
std::condition_variable gate_changed;
bool gate_open;

void at_gate(void *)
{
	std::unique_lock<std::mutex> hold(gate_lock);

	gate_changed.wait(hold, [] { return gate_open; });
}

} // namespace

// ---- for ctypes ----

extern "C" {

int vcuda_count() { return count(); }
int vcuda_device() { return device; }
void vcuda_set_device(int d) { device = d; }
void *vcuda_stream(int d) { return streams[d]; }
void vcuda_set_stream(int d, void *stream) { streams[d] = stream; }
void vcuda_use(int d) { use(d); }

void vcuda_hold(int d)
{
	std::unique_lock<std::mutex> hold(gate_lock);

	gate_open = false;
	hold.unlock();
	use(d);
	call("cuLaunchHostFunc", streams[d], &at_gate, (void *)nullptr);
}

void vcuda_open()
{
	std::lock_guard<std::mutex> hold(gate_lock);

	gate_open = true;
	gate_changed.notify_all();
}

// Gives what nobody has back to the driver.
void vcuda_empty_cache()
{
	std::lock_guard<std::mutex> hold(memory_lock);

	for (auto &[which, ptr] : spare) {
		use(which.first);
		call("cuMemFree_v2", ptr);
	}
	spare.clear();
}
}
