// libcu++'s own function objects: cuda::maximum, cuda::minimum, cuda::proclaim_return_type.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

namespace hearth {

template <class R, class F>
class ReturnType {
public:
    constexpr explicit ReturnType(F fn) : fn_(::std::move(fn)) {}
    template <class... A>
    constexpr R operator()(A &&...arguments) {
        static_assert(::std::is_same_v<R, ::std::invoke_result_t<F &, A...>>, "the function returns another type than proclaimed");
        return ::std::invoke(fn_, ::std::forward<A>(arguments)...);
    }
    template <class... A>
    constexpr R operator()(A &&...arguments) const {
        static_assert(::std::is_same_v<R, ::std::invoke_result_t<const F &, A...>>, "the function returns another type than proclaimed");
        return ::std::invoke(fn_, ::std::forward<A>(arguments)...);
    }

private:
    F fn_;
};

}  // namespace hearth

namespace cuda {

#define HEARTH_EXTREME(name, expression) \
    template <class T = void> \
    struct name { \
        constexpr T operator()(const T &a, const T &b) const { return expression; } \
    }; \
    template <> \
    struct name<void> { \
        template <class A, class B> \
        constexpr ::std::common_type_t<A, B> operator()(const A &a, const B &b) const { return expression; } \
    };
HEARTH_EXTREME(maximum, a < b ? b : a)
HEARTH_EXTREME(minimum, a < b ? a : b)
#undef HEARTH_EXTREME

template <class R, class F>
constexpr hearth::ReturnType<R, ::std::decay_t<F>> proclaim_return_type(F &&fn) {
    return hearth::ReturnType<R, ::std::decay_t<F>>(::std::forward<F>(fn));
}
template <class F>
constexpr ::std::decay_t<F> proclaim_copyable_arguments(F &&fn) { return ::std::forward<F>(fn); }
template <class T>
inline T *get_device_address(T &object) { return &object; }

}  // namespace cuda
