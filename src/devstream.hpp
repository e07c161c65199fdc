/* devstream.hpp - owners of devstream's objects for C++11 and later.

   Do this:
       #include "devstream.hpp"
   in C++ files, and link devstream.c, which a C compiler compiles.

   ds::stream, ds::event, ds::kernel, ds::graph and ds::graph_exec own an object. ds::block<T> and
   ds::pinned<T> own an array of the caching allocator, in device memory or in pinned host memory.
   ds::device_scope and ds::stream_scope make a device or a stream current. The destructor
   destroys, frees or leaves. All functions of C remain usable beside them.

   Example (compiles as it stands):
       #include "devstream.hpp"
       #include <cstdio>
       static ds_result copy_back(float *out_last) {
           ds::stream s;
           ds::block<float> x;
           ds::pinned<float> h;
           DS_CHECK(s.create());
           DS_CHECK(x.create(1000, s));
           DS_CHECK(h.create(1000));
           for (float &value : h)
               value = 1.5f;
           DS_CHECK(ds_copy(x.get(), h.get(), x.bytes(), s));
           DS_CHECK(ds_fill(h.get(), 0, 4, h.count(), s));
           DS_CHECK(ds_copy(h.get(), x.get(), x.bytes(), s));
           DS_CHECK(ds_stream_synchronize(s));
           *out_last = h[999];
           return DS_OK;
       }
       int main() {
           float last = 0;
           DS_CHECK(copy_back(&last));
           std::printf("1000 floats, the last is %g\n", static_cast<double>(last));
           return DS_CHECK(ds_shutdown());
       }

   Errors:
   - Constructors do not fail: they create an empty owner, or take an object that exists.
   - create() and enter() return a result that the compiler wants to be used. On failure the owner
     is empty and nothing is leaked. Errors name the caller's file and line.
   - Destructors and moves discard the result of the destruction. reset() and leave() return it.
   - Neither exceptions nor RTTI are needed, and no function throws. To use exceptions, define
     DS_CHECK_HANDLER as a `throw` before the include; owners free their objects as usual.

   Rules:
   - An empty owner has a zeroed handle, or NULL and no elements. A moved-from owner is empty.
   - create() first destroys the present object, also if the creation then fails.
   - An owner of a handle converts to the handle, so functions of C take it. Memory needs get(). A
     temporary owner does not convert: its handle would be invalid at the end of the expression.
   - The destructors of owners and scopes do nothing after ds_shutdown, so owners may be static. If
     devstream is initialised again, release() owners of earlier memory first: another block may
     have the same address.
   - An owner belongs to one thread at a time; a scope to the thread that entered it.

   Licence: MIT or public domain, at your choice; see the end of devstream.h. */
#ifndef DEVSTREAM_HPP_INCLUDED
#define DEVSTREAM_HPP_INCLUDED

#include "devstream.h"
#include "devstream_alloc.h"

#include <type_traits>

/* The caller's file and line, as the last parameters of a function. */
#define DS_HERE_ const char *file = __builtin_FILE(), int line = __builtin_LINE()
/* Calls a function of C with that file and line. The arguments must not call devstream. */
#define DS_AT_(function, ...) (ds_site_set(file, line), (function)(__VA_ARGS__))

namespace ds {

/** Owns the object that a handle names. Base of the owners below. */
template <typename Handle, ds_result (*Destroy)(Handle)> class owner {
  public:
    owner() noexcept : handle_() {
    }

    /** Takes the ownership of an object. */
    explicit owner(Handle handle) noexcept : handle_(handle) {
    }

    owner(owner &&other) noexcept : handle_(other.release()) {
    }

    owner &operator=(owner &&other) noexcept {
        DS_IGNORE(reset(other.release())); /* moves to itself too */
        return *this;
    }

    ~owner() {
        DS_IGNORE(reset());
    }

    Handle get() const noexcept {
        return handle_;
    }

    operator Handle() const &noexcept {
        return handle_;
    }

    operator Handle() const && = delete;

    explicit operator bool() const noexcept {
        return handle_.id != 0;
    }

    /** Returns the handle and gives up the ownership. */
    DS_MUST_USE Handle release() noexcept {
        Handle handle = handle_;
        handle_ = Handle();
        return handle;
    }

    /** Destroys the object and takes another one, or none. Returns the result of the
        destruction. */
    DS_MUST_USE ds_result reset(Handle handle = Handle()) noexcept {
        Handle old = handle_;
        handle_ = handle;
        return old.id && ds_is_initialized() ? Destroy(old) : DS_OK;
    }

  protected:
    /** Destroys the object. Returns the place of a new handle. */
    Handle *out() noexcept {
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
    DS_MUST_USE ds_result create(const ds_stream_desc *desc = nullptr, DS_HERE_) noexcept {
        ds_stream *to = out();
        return DS_AT_(ds_stream_create, desc, to);
    }
};

/** Owns an event. */
class event : public owner<ds_event, ds_event_destroy> {
  public:
    using owner::owner;

    /** Creates an event as ds_event_create does. */
    DS_MUST_USE ds_result create(unsigned flags = DS_EVENT_DEFAULT, const char *label = nullptr,
                                 DS_HERE_) noexcept {
        ds_event *to = out();
        return DS_AT_(ds_event_create, flags, label, to);
    }
};

/** Owns a kernel. */
class kernel : public owner<ds_kernel, ds_kernel_destroy> {
  public:
    using owner::owner;

    /** Creates a kernel as ds_kernel_create does. */
    DS_MUST_USE ds_result create(const ds_kernel_desc &desc, DS_HERE_) noexcept {
        ds_kernel *to = out();
        return DS_AT_(ds_kernel_create, &desc, to);
    }

    /** Launches the kernel over items with an argument struct as ds_kernel_launch does. */
    template <typename Args>
    DS_MUST_USE ds_result launch(size_t items, const Args &args, ds_stream on,
                                 DS_HERE_) const noexcept {
        static_assert(std::is_class<Args>::value && std::is_trivially_copyable<Args>::value,
                      "args must be the argument struct of the kernel");
        return DS_AT_(ds_kernel_launch, get(), items, &args, sizeof args, on);
    }
};

/** Owns a graph. */
class graph : public owner<ds_graph, ds_graph_destroy> {
  public:
    using owner::owner;

    /** Creates an empty graph as ds_graph_create does. */
    DS_MUST_USE ds_result create(const ds_graph_desc *desc = nullptr, DS_HERE_) noexcept {
        ds_graph *to = out();
        return DS_AT_(ds_graph_create, desc, to);
    }

    /** Ends the capture of a stream as ds_capture_end does, and takes the graph. */
    DS_MUST_USE ds_result capture_end(ds_stream of, DS_HERE_) noexcept {
        ds_graph *to = out();
        return DS_AT_(ds_capture_end, of, to);
    }
};

/** Owns an executable. */
class graph_exec : public owner<ds_graph_exec, ds_graph_exec_destroy> {
  public:
    using owner::owner;

    /** Instantiates a graph as ds_graph_instantiate does. */
    DS_MUST_USE ds_result create(ds_graph of, const ds_graph_exec_desc *desc = nullptr,
                                 DS_HERE_) noexcept {
        ds_graph_exec *to = out();
        return DS_AT_(ds_graph_instantiate, of, desc, to);
    }
};

/** Owns an array of T, which is not initialised. Base of block and pinned. */
template <typename T, ds_result (*Free)(void *)> class array {
    static_assert(std::is_trivially_copyable<T>::value,
                  "no constructor runs for elements, so T must be trivially copyable");

  public:
    array() noexcept : ptr_(nullptr), count_(0) {
    }

    array(array &&other) noexcept : ptr_(other.ptr_), count_(other.count_) {
        other.forget();
    }

    array &operator=(array &&other) noexcept {
        if (this != &other) {
            DS_IGNORE(reset());
            ptr_ = other.ptr_;
            count_ = other.count_;
            other.forget();
        }
        return *this;
    }

    ~array() {
        DS_IGNORE(reset());
    }

    /** Returns the address of the first element, or NULL. */
    T *get() const noexcept {
        return ptr_;
    }

    explicit operator bool() const noexcept {
        return ptr_ != nullptr;
    }

    /** Returns the number of elements. */
    size_t count() const noexcept {
        return count_;
    }

    /** Returns the size of all elements in bytes. */
    size_t bytes() const noexcept {
        return count_ * sizeof(T);
    }

    /** Returns the address and gives up the ownership. */
    DS_MUST_USE T *release() noexcept {
        T *ptr = ptr_;
        forget();
        return ptr;
    }

    /** Frees the memory. Returns the result. */
    DS_MUST_USE ds_result reset() noexcept {
        void *old = ptr_;
        forget();
        return old && ds_is_initialized() ? Free(old) : DS_OK;
    }

  protected:
    /** Returns the size of count elements in bytes. If it exceeds a size_t, returns SIZE_MAX,
        which every allocation refuses. */
    static size_t bytes_of(size_t count) noexcept {
        return count > static_cast<size_t>(-1) / sizeof(T) ? static_cast<size_t>(-1)
                                                           : count * sizeof(T);
    }

    /** Takes the memory of a successful allocation. Returns the allocation's result. */
    ds_result take(ds_result result, void *ptr, size_t count) noexcept {
        ptr_ = static_cast<T *>(ptr);
        count_ = ptr ? count : 0;
        return result;
    }

  private:
    void forget() noexcept {
        ptr_ = nullptr;
        count_ = 0;
    }

    T *ptr_;
    size_t count_;
};

/** Owns an array in device memory. It is freed on the stream of its allocation, see
    ds_mem_free. */
template <typename T> class block : public array<T, ds_mem_free> {
  public:
    /** Allocates count elements on a stream as ds_mem_alloc does. 0 elements: the owner is
        empty. */
    DS_MUST_USE ds_result create(size_t count, ds_stream on, DS_HERE_) noexcept {
        void *ptr = nullptr;
        DS_IGNORE(this->reset());
        ds_result r = DS_AT_(ds_mem_alloc, this->bytes_of(count), on, &ptr);
        return this->take(r, ptr, count);
    }
};

/** Owns an array in pinned host memory, which the host and devices reach. The host may use the
    elements when no work that uses them is pending. */
template <typename T> class pinned : public array<T, ds_mem_pinned_free> {
  public:
    /** Allocates count elements as ds_mem_pinned_alloc does. 0 elements: the owner is empty. */
    DS_MUST_USE ds_result create(size_t count, DS_HERE_) noexcept {
        void *ptr = nullptr;
        DS_IGNORE(this->reset());
        ds_result r = DS_AT_(ds_mem_pinned_alloc, this->bytes_of(count), &ptr);
        return this->take(r, ptr, count);
    }

    T &operator[](size_t i) const noexcept {
        return this->get()[i];
    }

    T *begin() const noexcept {
        return this->get();
    }

    T *end() const noexcept {
        return this->get() + this->count();
    }
};

/** Leaves what it has entered at the end of the C++ block. Base of the scopes below. */
template <ds_result (*Pop)()> class scope {
  public:
    scope() noexcept : entered_(false) {
    }

    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;

    ~scope() {
        DS_IGNORE(leave());
    }

    explicit operator bool() const noexcept {
        return entered_;
    }

    /** Leaves the scope, if it was entered. Returns the result. */
    DS_MUST_USE ds_result leave() noexcept {
        bool pop = entered_ && ds_is_initialized();
        entered_ = false;
        return pop ? Pop() : DS_OK;
    }

  protected:
    /** Takes the result of a push. Returns the result. */
    ds_result take(ds_result result) noexcept {
        entered_ = result == DS_OK;
        return result;
    }

  private:
    bool entered_;
};

/** Makes a device current. */
class device_scope : public scope<ds_device_pop> {
  public:
    /** Saves the thread's current device and sets another one as ds_device_push does. */
    DS_MUST_USE ds_result enter(ds_device to, DS_HERE_) noexcept {
        DS_IGNORE(leave());
        return take(DS_AT_(ds_device_push, to));
    }
};

/** Makes a stream and its device current. */
class stream_scope : public scope<ds_stream_pop> {
  public:
    /** Saves the thread's current device and stream and sets others as ds_stream_push does.
        flags: DS_PUSH_*, DS_POP_WAIT_BACK. */
    DS_MUST_USE ds_result enter(ds_stream to, unsigned flags = 0, DS_HERE_) noexcept {
        DS_IGNORE(leave());
        return take(DS_AT_(ds_stream_push, to, flags));
    }
};

} // namespace ds

#undef DS_AT_
#undef DS_HERE_

#endif
