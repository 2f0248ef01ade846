// cuda::std::expected: a value or an error. value() traps if there is no value.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>
#include <variant>

namespace cuda {
namespace std {

struct unexpect_t {
    explicit unexpect_t() = default;
};
inline constexpr unexpect_t unexpect{};

template <class E>
class unexpected {
public:
    template <class G = E, ::std::enable_if_t<::std::is_constructible_v<E, G> && !::std::is_same_v<::std::decay_t<G>, unexpected>, int> = 0>
    constexpr explicit unexpected(G &&error) : error_(::std::forward<G>(error)) {}
    constexpr const E &error() const & noexcept { return error_; }
    constexpr E &error() & noexcept { return error_; }
    constexpr E &&error() && noexcept { return ::std::move(error_); }
    friend constexpr bool operator==(const unexpected &a, const unexpected &b) { return a.error_ == b.error_; }
    friend constexpr bool operator!=(const unexpected &a, const unexpected &b) { return !(a == b); }

private:
    E error_;
};
template <class E> unexpected(E) -> unexpected<E>;

template <class T, class E>
class expected {
    static constexpr bool empty = ::std::is_void_v<T>;
    using Held = ::std::conditional_t<empty, ::std::monostate, T>;

public:
    using value_type = T;
    using error_type = E;
    using unexpected_type = unexpected<E>;
    template <class U>
    using rebind = expected<U, E>;

    constexpr expected() = default;
    template <class U = Held, ::std::enable_if_t<!empty && ::std::is_constructible_v<Held, U> && !::std::is_same_v<::std::decay_t<U>, expected> &&
                                                     !::std::is_same_v<::std::decay_t<U>, ::std::in_place_t> &&
                                                     !::std::is_same_v<::std::decay_t<U>, unexpected<E>>, int> = 0>
    constexpr expected(U &&value) : held_(::std::in_place_index<0>, ::std::forward<U>(value)) {}
    template <class G>
    constexpr expected(const unexpected<G> &error) : held_(::std::in_place_index<1>, E(error.error())) {}
    template <class G>
    constexpr expected(unexpected<G> &&error) : held_(::std::in_place_index<1>, E(::std::move(error).error())) {}
    template <class... A>
    constexpr explicit expected(unexpect_t, A &&...arguments) : held_(::std::in_place_index<1>, E(::std::forward<A>(arguments)...)) {}
    template <class... A>
    constexpr explicit expected(::std::in_place_t, A &&...arguments) : held_(::std::in_place_index<0>, ::std::forward<A>(arguments)...) {}

    constexpr bool has_value() const noexcept { return held_.index() == 0; }
    constexpr explicit operator bool() const noexcept { return has_value(); }
    constexpr ::std::add_lvalue_reference_t<const T> operator*() const & noexcept {
        if constexpr (!empty) return *::std::get_if<0>(&held_);
    }
    constexpr ::std::add_lvalue_reference_t<T> operator*() & noexcept {
        if constexpr (!empty) return *::std::get_if<0>(&held_);
    }
    constexpr const Held *operator->() const noexcept { return ::std::get_if<0>(&held_); }
    constexpr Held *operator->() noexcept { return ::std::get_if<0>(&held_); }
    constexpr ::std::add_lvalue_reference_t<const T> value() const & {
        if (!has_value()) __trap();
        return **this;
    }
    constexpr ::std::add_lvalue_reference_t<T> value() & {
        if (!has_value()) __trap();
        return **this;
    }
    constexpr const E &error() const & noexcept { return ::std::get_if<1>(&held_)->value; }
    constexpr E &error() & noexcept { return ::std::get_if<1>(&held_)->value; }
    template <class U>
    constexpr Held value_or(U &&other) const {
        return has_value() ? *::std::get_if<0>(&held_) : static_cast<Held>(::std::forward<U>(other));
    }
    template <class G>
    constexpr E error_or(G &&other) const {
        return has_value() ? static_cast<E>(::std::forward<G>(other)) : error();
    }
    template <class... A>
    constexpr Held &emplace(A &&...arguments) { return held_.template emplace<0>(::std::forward<A>(arguments)...); }

    template <class F>
    constexpr auto and_then(F &&fn) const {
        using R = ::std::decay_t<decltype(call(fn))>;
        return has_value() ? call(fn) : R(unexpect, error());
    }
    template <class F>
    constexpr expected or_else(F &&fn) const {
        return has_value() ? *this : expected(::std::invoke(fn, error()));
    }
    template <class F>
    constexpr auto transform(F &&fn) const {
        using R = expected<::std::decay_t<decltype(call(fn))>, E>;
        if (!has_value()) return R(unexpect, error());
        if constexpr (::std::is_void_v<typename R::value_type>) {
            call(fn);
            return R();
        } else {
            return R(::std::in_place, call(fn));
        }
    }
    template <class F>
    constexpr auto transform_error(F &&fn) const {
        using R = expected<T, ::std::decay_t<::std::invoke_result_t<F, const E &>>>;
        if (!has_value()) return R(unexpect, ::std::invoke(fn, error()));
        if constexpr (empty) return R();
        else return R(::std::in_place, **this);
    }

    friend constexpr bool operator==(const expected &a, const expected &b) {
        if (a.has_value() != b.has_value()) return false;
        if (!a.has_value()) return a.error() == b.error();
        if constexpr (empty) return true;
        else return *a == *b;
    }
    friend constexpr bool operator!=(const expected &a, const expected &b) { return !(a == b); }
    friend constexpr bool operator==(const expected &a, const unexpected<E> &b) { return !a.has_value() && a.error() == b.error(); }

private:
    // Distinct from the value's type, which may be equal.
    struct Error {
        E value;
        constexpr explicit Error(E error) : value(::std::move(error)) {}
    };
    template <class F>
    constexpr decltype(auto) call(F &&fn) const {
        if constexpr (empty) return ::std::invoke(fn);
        else return ::std::invoke(fn, **this);
    }

    ::std::variant<Held, Error> held_;
};

}  // namespace std
}  // namespace cuda
