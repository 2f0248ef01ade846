// C++ that a scanner of tokens has to follow.

// program literals: 1000 255 5 97 3 10
__device__ const char* raw = R"x(extern "C" { __global__ ::time /* )x";
extern "C" __global__ void literals(int* out) {
    out[0] = 1'000; out[1] = 0xFFu; out[2] = 0b101; out[3] = u8"a"[0]; out[4] = (int)0x1.8p1f; out[5] = "a\"b{"[1] == '"' ? 10 : '\''; (void)raw;
}

// program alternative_tokens: 1 0 6
extern "C" __global__ void alternative_tokens(int* out) <% int v<:3:> = <%1, 2, 3%>; out[0] = v[0] == 1 and not (v[1] == 1 or v[2] == 1); out[1] = 5 bitand 2; out[2] = 5 xor 3; %>

// program out_of_class: 3 8 12 5 4 9
template <class T> struct Outer { T v; struct Inner; __device__ explicit Outer(T v); __device__ ~Outer(); __device__ operator int() const; template <class U> __device__ U as() const; __device__ T operator()(T a); static const int limit; static constexpr int values[2] = {4, 5}; __device__ Outer& operator=(const Outer&) = default; __device__ Outer(const Outer&) = default; };
template <class T> struct Outer<T>::Inner { T w; __device__ auto get() const noexcept(true) -> T; };
template <class T> __device__ Outer<T>::Outer(T v_) : v(v_) {}
template <class T> __device__ Outer<T>::~Outer() {}
template <class T> __device__ Outer<T>::operator int() const { return (int)v; }
template <class T> template <class U> __device__ U Outer<T>::as() const { return U(v) + 5; }
template <class T> __device__ T Outer<T>::operator()(T a) { return v * a; }
template <class T> const int Outer<T>::limit = 4;
template <class T> __device__ auto Outer<T>::Inner::get() const noexcept(true) -> T { return w; }
extern "C" __global__ void out_of_class(int* out) { Outer<int> o(3); Outer<int>::Inner i{5}; out[0] = o; out[1] = o.template as<int>(); out[2] = o(4); out[3] = i.get(); out[4] = Outer<float>::limit; out[5] = Outer<int>::values[0] + Outer<int>::values[1]; }

// program declarators: 2 3 4 6 1
typedef int Row[2]; typedef void (*Callback)(int*, int);
__device__ int twice(int v) { return 2 * v; }
__device__ int (*choose(int))(int) { return twice; }
__device__ int total(const int (&a)[3]) { return a[0] + a[1] + a[2]; }
__device__ void store(int* p, int v) { *p = v; }
__device__ int first_v = 1, *pointers[2], matrix[2][2] = {{1, 2}, {3, 4}}, (*row_pointer)[2] = matrix;
extern "C" __global__ void declarators(int* out) { Row row = {1, 2}; Callback callback = &store; callback(out, row[1]); out[1] = row_pointer[1][0]; out[2] = choose(0)(2); int a[] = {1, 2, 3}; out[3] = total(a); pointers[0] = &first_v; out[4] = *pointers[0]; }

// program angles_and_comparisons: 1 8 3 1
template <bool B, int N = 3> struct If { static const int value = B ? N : -N; };
template <class T, class U = If<(sizeof(T) > 4), 8>> struct Defaulted { typedef U type; };
extern "C" __global__ void angles_and_comparisons(int* out) { int a = 1, b = 2; out[0] = a < b && b > a; out[1] = Defaulted<double>::type::value; out[2] = If<(1 < 2)>::value; out[3] = (a << 2) >> 2; }

// program nested_templates: 5 2 7
template <class T> struct Holder { template <int N> __device__ int get() const { return N; } template <class U> struct rebind { typedef Holder<U> other; }; };
template <class T> __device__ int deep(const T& t) { typedef typename T::template rebind<char>::other other; return t.template get<5>() + sizeof(other) - 1; }
template <class T> struct Base { int b = 2; __device__ int get() const { return b; } };
template <class T> struct Deriv : Base<T> { using Base<T>::b; typedef Base<T> super; __device__ int all() const { return this->get() + super::get() + b + 1; } };
extern "C" __global__ void nested_templates(int* out) { out[0] = deep(Holder<Holder<int>>()); Deriv<float> d; out[1] = d.b; out[2] = d.all(); }

// program local_things: 3 9 2 4
__device__ int outside(int);
extern "C" __global__ void local_things(int* out) {
    extern __device__ int outside(int); enum { two = 2 }; struct Local { int v; __device__ int sq() { return v * v; } } local{3}; using L = Local; typedef int (*Fn)(int);
    out[0] = L{3}.v; out[1] = local.sq(); out[2] = two; Fn fn = outside; out[3] = fn(3);
}
__device__ int outside(int v) { return v + 1; }

// program friends_and_lookup: 6 4 1
namespace geo { template <class T> class P { T x_; public: __device__ P(T x) : x_(x) {} template <class U> friend __device__ P<U> operator+(P<U>, P<U>); friend __device__ T get(P p) { return p.x_; } friend struct Peek; };
template <class U> __device__ P<U> operator+(P<U> a, P<U> b) { return P<U>(a.x_ + b.x_); } struct Peek { __device__ static int at(P<int> p) { return p.x_; } };
__device__ void swap(P<int>& a, P<int>& b) { P<int> t = a; a = b; b = t; } }
extern "C" __global__ void friends_and_lookup(int* out) { geo::P<int> a(1), b(4); swap(a, b); out[0] = get(a + b) + 1; out[1] = geo::Peek::at(a); out[2] = get(b); }

// program builtins: 1 8 1
extern "C" __global__ void builtins(int* out) { int v = 3; if (__builtin_expect(v == 3, 1)) out[0] = 1; else __builtin_unreachable(); out[1] = __popc(255u); __builtin_assume(v > 0); out[2] = *(int*)__builtin_assume_aligned(out, 4); }

// program wide_integers: 1 5 -1
extern "C" __global__ void wide_integers(int* out) { unsigned long long a = ~0ull; __int128 w = (__int128)a * a; out[0] = (int)(w & 0xff); out[1] = sizeof(w) == 16 ? 5 : 0; out[2] = (int)(long long)a; }

// program decltype_and_auto: 3 4 2 8
__device__ decltype(auto) pass(int& v) { return (v); }
template <class T, class U> __device__ auto mixed(T t, U u) -> decltype(t * u) { return t * u; }
auto __device__ trailing(int v) -> int { return v; }
extern "C" __global__ void decltype_and_auto(int* out) { int v = 1; pass(v) = 3; out[0] = v; out[1] = mixed(2, 2.0f); out[2] = trailing(2); decltype(out[0] + 1L) w = 8; out[3] = sizeof(w) == 8 ? w : 0; }

// program initialisers: 1 2 3 6 5
struct Agg { int a, b[2]; struct { int c; } d; }; struct WithDefault { int x = 5; WithDefault() = default; __device__ WithDefault(int v) : WithDefault() { x = v; } };
extern "C" __global__ void initialisers(int* out) { Agg g = {1, {2, 3}, {6}}; out[0] = g.a; out[1] = g.b[0]; out[2] = g.b[1]; out[3] = g.d.c; WithDefault w{}; out[4] = w.x; (void)WithDefault(3); }

// program qualified_globally: 9 2 7
__device__ int value = 9; namespace shadow { __device__ int value = 2; __device__ int outer() { return ::value; } struct value_t { int v; }; }
struct abs_t { int time; __device__ int get() { int value = 1; return ::shadow::value * value; } };
extern "C" __global__ void qualified_globally(int* out) { out[0] = shadow::outer(); out[1] = abs_t().get(); out[2] = sizeof(::shadow::value_t) + (int)(::abs_t{3}.time); }
