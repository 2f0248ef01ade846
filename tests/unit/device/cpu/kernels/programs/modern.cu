// Programs in C++20, and with the tuple protocol of the language.
// program designated_initialisers: 1 3 0
struct Options { int first = 1; int second; float third = 0; };
extern "C" __global__ void designated_initialisers(int* out) { Options o{.second = 3}; out[0] = o.first; out[1] = o.second; out[2] = (int)o.third; }

// program concepts: 2 1 6
template <class T> concept Small = sizeof(T) <= 4;
template <class T> concept Summable = requires(T a, T b) { a + b; };
template <Small T> __device__ int size_class(T) { return 1; }
template <class T> requires(!Small<T>) __device__ int size_class(T) { return 2; }
__device__ auto total(Summable auto... v) { return (v + ...); }
extern "C" __global__ void concepts(int* out) { out[0] = size_class(1.0); out[1] = size_class(1); out[2] = total(1, 2, 3); }

// program comparisons: 1 0 5
struct Version { int major, minor; __device__ bool operator==(const Version&) const = default; };
template <class T> struct Span { T* p; int n; __device__ T* begin() const { return p; } __device__ T* end() const { return p + n; } };
template <class T> Span(T*, int) -> Span<T>;
extern "C" __global__ void comparisons(int* out) { out[0] = Version{1, 2} == Version{1, 2}; out[1] = Version{1, 2} == Version{1, 3}; int v[] = {2, 3}; int s = 0; for (int x : Span{v, 2}) s += x; out[2] = s; }

// program template_lambdas: 4 6
template <auto N> struct Value { static constexpr auto v = N; };
__device__ consteval int twice(int v) { return 2 * v; }
extern "C" __global__ void template_lambdas(int* out) { auto f = []<class T>(T v) { return sizeof(T) * v; }; out[0] = f(1); out[1] = Value<twice(3)>::v; constinit static int unused = 0; (void)unused; }
