/* Generated from src/devstream.hpp by `make headers`. Edit the files in src/, not this one. */
/* devstream.hpp - owners of devstream's objects for C++11, without exceptions.

   Do this:
       #include "devstream.hpp"
   beside devstream.h, and link devstream.c, which is C. Include devstream_alloc.h before, and
   ds::block and ds::pinned take their memory from the caching allocator.

   An owner destroys its object when its scope ends, can be moved, and converts to the C handle, so
   each C function takes it. Functions that can fail return ds_result; DS_CHECK may handle it. The
   header needs neither exceptions nor RTTI.

   Example (compiles as it stands):
       #include "devstream_alloc.h"
       #include "devstream.hpp"
       #include <cstdio>
       int main() {
           {
               ds::stream s;
               ds::block<float> x;
               ds::pinned<float> h;
               DS_CHECK(s.create());
               DS_CHECK(ds::alloc(1000, s, &x));
               DS_CHECK(h.create(1000));
               h[0] = 1.5f;
               DS_CHECK(ds_copy(x, h, x.size_bytes(), s));
               DS_CHECK(ds_stream_synchronize(s));
               std::printf("%zu bytes on a device\n", x.size_bytes());
           }
           return DS_CHECK(ds_shutdown());
       }

   Rules:
   - An empty owner has a zeroed handle or NULL. A moved-from owner is empty. create() first
     destroys the present object; if it fails, the owner is empty.
   - A destructor ignores the result; reset() returns it. After ds_shutdown a destructor does
     nothing, so owners may be static.
   - Errors name the caller's file and line.
   - An owner belongs to one thread at a time. The other rules are those of the C functions: without
     devstream_alloc.h, the destructors of ds::block and ds::pinned wait for the device.

   Licence: MIT or public domain, at your choice; see the end of devstream.h. */
#ifndef DEVSTREAM_HPP_INCLUDED
#define DEVSTREAM_HPP_INCLUDED

#include "devstream.h"

/* The caller's file and line, as the last parameters of a function. */
#define DS_HERE_ const char *file = __builtin_FILE(), int line = __builtin_LINE()
/* Calls a C function with that file and line. Its arguments must not call devstream. */
#define DS_AT_(function, ...) (ds_site_set(file, line), (function)(__VA_ARGS__))

namespace ds {

/** Owns the object that a handle names. Base of the owners below. */
template <typename Handle, ds_result (*Destroy)(Handle)> class owner {
  public:
    owner() : handle_() {
    }

    /** Takes the ownership of an object. */
    explicit owner(Handle handle) : handle_(handle) {
    }

    owner(owner &&other) noexcept : handle_(other.release()) {
    }

    owner &operator=(owner &&other) noexcept {
        DS_IGNORE(reset(other.release())); /* also right if this is the other */
        return *this;
    }

    ~owner() {
        DS_IGNORE(reset());
    }

    Handle get() const {
        return handle_;
    }

    operator Handle() const {
        return handle_;
    }

    explicit operator bool() const {
        return handle_.id != 0;
    }

    /** Returns the handle and gives up the ownership. */
    Handle release() {
        Handle handle = handle_;
        handle_ = Handle();
        return handle;
    }

    /** Destroys the object and takes another one, or none. Returns the result of the
        destruction. */
    ds_result reset(Handle handle = Handle()) {
        Handle old = handle_;
        handle_ = handle;
        return old.id && ds_is_initialized() ? Destroy(old) : DS_OK;
    }

  protected:
    /** Destroys the object and returns the place for a new one. */
    Handle *out() {
        DS_IGNORE(reset());
        return &handle_;
    }

  private:
    Handle handle_;
};

/** Owns a stream. */
class stream : public owner<ds_stream, ds_stream_destroy> {
  public:
    using owner::owner;

    /** Creates a stream as ds_stream_create does. */
    ds_result create(const ds_stream_desc *desc = nullptr, DS_HERE_) {
        ds_stream *to = out();
        return DS_AT_(ds_stream_create, desc, to);
    }
};

/** Owns an event. */
class event : public owner<ds_event, ds_event_destroy> {
  public:
    using owner::owner;

    /** Creates an event as ds_event_create does. */
    ds_result create(unsigned flags = DS_EVENT_DEFAULT, const char *label = nullptr, DS_HERE_) {
        ds_event *to = out();
        return DS_AT_(ds_event_create, flags, label, to);
    }
};

/** Owns a kernel. */
class kernel : public owner<ds_kernel, ds_kernel_destroy> {
  public:
    using owner::owner;

    /** Creates a kernel as ds_kernel_create does. */
    ds_result create(const ds_kernel_desc &desc, DS_HERE_) {
        ds_kernel *to = out();
        return DS_AT_(ds_kernel_create, &desc, to);
    }

    /** Launches the kernel over items with an argument struct as ds_kernel_launch does. */
    template <typename Args>
    ds_result launch(size_t items, const Args &args, ds_stream on, DS_HERE_) const {
        return DS_AT_(ds_kernel_launch, get(), items, &args, sizeof args, on);
    }
};

/** Owns a graph. */
class graph : public owner<ds_graph, ds_graph_destroy> {
  public:
    using owner::owner;

    /** Creates an empty graph as ds_graph_create does. */
    ds_result create(const ds_graph_desc *desc = nullptr, DS_HERE_) {
        ds_graph *to = out();
        return DS_AT_(ds_graph_create, desc, to);
    }

    /** Ends the capture of a stream as ds_capture_end does, and takes the graph. */
    ds_result capture_end(ds_stream of, DS_HERE_) {
        ds_graph *to = out();
        return DS_AT_(ds_capture_end, of, to);
    }
};

/** Owns an executable. */
class graph_exec : public owner<ds_graph_exec, ds_graph_exec_destroy> {
  public:
    using owner::owner;

    /** Instantiates a graph as ds_graph_instantiate does. */
    ds_result create(ds_graph of, const ds_graph_exec_desc *desc = nullptr, DS_HERE_) {
        ds_graph_exec *to = out();
        return DS_AT_(ds_graph_instantiate, of, desc, to);
    }
};

/* Files with and without devstream_alloc.h have different types, so that they may be linked. */
#ifdef DEVSTREAM_ALLOC_H_INCLUDED
#define DS_MEMORY_ cached
#define DS_BLOCK_FREE_ ds_mem_free
#define DS_PINNED_ALLOC_ ds_mem_pinned_alloc
#define DS_PINNED_FREE_ ds_mem_pinned_free
#else
#define DS_MEMORY_ plain
#define DS_BLOCK_FREE_ ds_device_free
#define DS_PINNED_ALLOC_ ds_pinned_alloc
#define DS_PINNED_FREE_ ds_pinned_free
#endif

inline namespace DS_MEMORY_ {

/** Owns an array of T, which is not initialised. Base of block and pinned. */
template <typename T, ds_result (*Free)(void *)> class array {
  public:
    array() : ptr_(nullptr), count_(0) {
    }

    array(array &&other) noexcept : ptr_(other.ptr_), count_(other.count_) {
        (void)other.release();
    }

    array &operator=(array &&other) noexcept {
        if (this != &other) {
            DS_IGNORE(reset());
            count_ = other.count_;
            ptr_ = other.release();
        }
        return *this;
    }

    ~array() {
        DS_IGNORE(reset());
    }

    T *get() const {
        return ptr_;
    }

    operator T *() const {
        return ptr_;
    }

    explicit operator bool() const {
        return ptr_ != nullptr;
    }

    /** Returns the number of elements. */
    size_t size() const {
        return count_;
    }

    /** Returns the number of bytes. */
    size_t size_bytes() const {
        return count_ * sizeof(T);
    }

    /** Returns the address and gives up the ownership. */
    T *release() {
        T *ptr = ptr_;
        ptr_ = nullptr;
        count_ = 0;
        return ptr;
    }

    /** Frees the memory. Returns the result. */
    ds_result reset() {
        void *old = release();
        return old && ds_is_initialized() ? Free(old) : DS_OK;
    }

  protected:
    /** Returns the bytes of count elements. SIZE_MAX, which is refused, if these are too many. */
    static size_t bytes(size_t count) {
        return count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T);
    }

    /** Takes new memory. Returns r. */
    ds_result take(ds_result r, void *ptr, size_t count) {
        ptr_ = static_cast<T *>(ptr);
        count_ = ptr ? count : 0;
        return r;
    }

  private:
    T *ptr_;
    size_t count_;
};

/** Owns an array in device memory. */
template <typename T> class block : public array<T, DS_BLOCK_FREE_> {
  public:
    /** Allocates count elements as ds_mem_alloc does, or as ds_device_alloc on the stream's
        device. */
    ds_result create(size_t count, ds_stream on, DS_HERE_) {
        void *ptr = nullptr;
        DS_IGNORE(this->reset());
#ifdef DEVSTREAM_ALLOC_H_INCLUDED
        ds_result r = DS_AT_(ds_mem_alloc, this->bytes(count), on, &ptr);
#else
        ds_device device;
        ds_result r = DS_AT_(ds_stream_get_device, on, &device);
        if (r == DS_OK)
            r = DS_AT_(ds_device_alloc, device, this->bytes(count), &ptr);
#endif
        return this->take(r, ptr, count);
    }
};

/** Owns an array in pinned memory. */
template <typename T> class pinned : public array<T, DS_PINNED_FREE_> {
  public:
    /** Allocates count elements as ds_mem_pinned_alloc or ds_pinned_alloc does. */
    ds_result create(size_t count, DS_HERE_) {
        void *ptr = nullptr;
        DS_IGNORE(this->reset());
        ds_result r = DS_AT_(DS_PINNED_ALLOC_, this->bytes(count), &ptr);
        return this->take(r, ptr, count);
    }
};

/** Allocates count elements of device memory as block::create does. */
template <typename T> ds_result alloc(size_t count, ds_stream on, block<T> *out, DS_HERE_) {
    return out->create(count, on, file, line);
}

} // namespace DS_MEMORY_

/** Base of the scopes below. */
template <void (*Leave)(ds_scope *)> class scope {
  public:
    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;

    ~scope() {
        Leave(&scope_);
    }

    /** Returns false if the scope was not entered; ds_error_get_last() has the error. */
    explicit operator bool() const {
        return scope_.pushed != 0;
    }

  protected:
    explicit scope(ds_scope entered) : scope_(entered) {
    }

  private:
    ds_scope scope_;
};

/** Makes a stream and its device current until the end of the block, as DS_STREAM_SCOPE does. */
class current_stream_scope : public scope<ds_stream_scope_leave> {
  public:
    explicit current_stream_scope(ds_stream current, unsigned flags = 0, DS_HERE_)
        : scope(DS_AT_(ds_stream_scope_enter, current, flags)) {
    }
};

/** Makes a device current until the end of the block, as DS_DEVICE_SCOPE does. */
class device_scope : public scope<ds_device_scope_leave> {
  public:
    explicit device_scope(ds_device current, DS_HERE_)
        : scope(DS_AT_(ds_device_scope_enter, current)) {
    }
};

} // namespace ds

#endif
