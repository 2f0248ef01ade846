// Reference to any callable. A template parameter would instead compile the caller once for each callable, and these
// sources are compiled while a client waits for them.
#pragma once

namespace hearth {

template <class Signature>
class Callable;

template <class R, class... Arguments>
class Callable<R(Arguments...)> {
public:
    template <class F>
    Callable(const F &f) : f_(&f), call_([](const void *f, Arguments... arguments) -> R {
        return (*static_cast<const F *>(f))(arguments...);
    }) {}

    R operator()(Arguments... arguments) const { return call_(f_, arguments...); }

private:
    const void *f_;
    R (*call_)(const void *f, Arguments...);
};

template <class T>
constexpr T smaller(T a, T b) {
    return b < a ? b : a;
}

}  // namespace hearth
