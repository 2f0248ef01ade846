// cuda::std::span before C++20.
#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <type_traits>

#if __cplusplus < 202002L

namespace cuda {
namespace std {

inline constexpr size_t dynamic_extent = static_cast<size_t>(-1);

template <class T, size_t Extent = dynamic_extent>
class span {
    template <class U>
    static constexpr bool fits = ::std::is_convertible_v<U (*)[], T (*)[]>;
    template <size_t N>
    static constexpr bool as_long = Extent == dynamic_extent || Extent == N;

public:
    using element_type = T;
    using value_type = ::std::remove_cv_t<T>;
    using size_type = size_t;
    using difference_type = ptrdiff_t;
    using pointer = T *;
    using const_pointer = const T *;
    using reference = T &;
    using const_reference = const T &;
    using iterator = T *;
    using reverse_iterator = ::std::reverse_iterator<iterator>;
    static constexpr size_t extent = Extent;

    template <size_t E = Extent, ::std::enable_if_t<E == 0 || E == dynamic_extent, int> = 0>
    constexpr span() noexcept {}
    constexpr span(T *first, size_t count) : data_(first), size_(count) {}
    constexpr span(T *first, T *last) : data_(first), size_(static_cast<size_t>(last - first)) {}
    template <size_t N, ::std::enable_if_t<as_long<N>, int> = 0>
    constexpr span(T (&all)[N]) noexcept : data_(all), size_(N) {}
    template <class U, size_t N, ::std::enable_if_t<as_long<N> && fits<U>, int> = 0>
    constexpr span(::std::array<U, N> &all) noexcept : data_(all.data()), size_(N) {}
    template <class U, size_t N, ::std::enable_if_t<as_long<N> && fits<const U>, int> = 0>
    constexpr span(const ::std::array<U, N> &all) noexcept : data_(all.data()), size_(N) {}
    template <class U, size_t N, ::std::enable_if_t<(as_long<N> || N == dynamic_extent) && fits<U>, int> = 0>
    constexpr span(const span<U, N> &other) noexcept : data_(other.data()), size_(other.size()) {}
    // Any contiguous container with data() and size().
    template <class C, ::std::enable_if_t<!::std::is_array_v<C> &&
                                              fits<::std::remove_pointer_t<decltype(::std::declval<C &>().data())>> &&
                                              ::std::is_convertible_v<decltype(::std::declval<C &>().size()), size_t> && Extent == dynamic_extent,
                                          int> = 0>
    constexpr span(C &container) : data_(container.data()), size_(container.size()) {}
    constexpr span(const span &) noexcept = default;
    constexpr span &operator=(const span &) noexcept = default;

    constexpr T *data() const noexcept { return data_; }
    constexpr size_t size() const noexcept { return Extent == dynamic_extent ? size_ : Extent; }
    constexpr size_t size_bytes() const noexcept { return size() * sizeof(T); }
    constexpr bool empty() const noexcept { return size() == 0; }
    constexpr T &operator[](size_t i) const { return data_[i]; }
    constexpr T &front() const { return data_[0]; }
    constexpr T &back() const { return data_[size() - 1]; }
    constexpr iterator begin() const noexcept { return data_; }
    constexpr iterator end() const noexcept { return data_ + size(); }
    constexpr reverse_iterator rbegin() const noexcept { return reverse_iterator(end()); }
    constexpr reverse_iterator rend() const noexcept { return reverse_iterator(begin()); }

    constexpr span<T> first(size_t count) const { return span<T>(data_, count); }
    constexpr span<T> last(size_t count) const { return span<T>(data_ + (size() - count), count); }
    constexpr span<T> subspan(size_t offset, size_t count = dynamic_extent) const {
        return span<T>(data_ + offset, count == dynamic_extent ? size() - offset : count);
    }
    template <size_t Count>
    constexpr span<T, Count> first() const { return span<T, Count>(data_, Count); }
    template <size_t Count>
    constexpr span<T, Count> last() const { return span<T, Count>(data_ + (size() - Count), Count); }
    template <size_t Offset, size_t Count = dynamic_extent>
    constexpr auto subspan() const {
        constexpr size_t left = Count != dynamic_extent ? Count : Extent != dynamic_extent ? Extent - Offset : dynamic_extent;
        return span<T, left>(data_ + Offset, Count != dynamic_extent ? Count : size() - Offset);
    }

private:
    T *data_ = nullptr;
    size_t size_ = 0;
};

template <class T, size_t N> span(T (&)[N]) -> span<T, N>;
template <class T, size_t N> span(::std::array<T, N> &) -> span<T, N>;
template <class T, size_t N> span(const ::std::array<T, N> &) -> span<const T, N>;
template <class T> span(T *, size_t) -> span<T>;
template <class T> span(T *, T *) -> span<T>;
template <class C> span(C &) -> span<::std::remove_pointer_t<decltype(::std::declval<C &>().data())>>;

template <class T, size_t N>
inline auto as_bytes(span<T, N> s) noexcept {
    return span<const ::std::byte, N == dynamic_extent ? dynamic_extent : N * sizeof(T)>(
        reinterpret_cast<const ::std::byte *>(s.data()), s.size_bytes());
}
template <class T, size_t N>
inline auto as_writable_bytes(span<T, N> s) noexcept {
    return span<::std::byte, N == dynamic_extent ? dynamic_extent : N * sizeof(T)>(
        reinterpret_cast<::std::byte *>(s.data()), s.size_bytes());
}

}  // namespace std
}  // namespace cuda

#endif
