// Programs that bring a `std` and other libraries' namespaces of their own, as those for NVRTC without headers do.
namespace std {
typedef decltype(sizeof(0)) size_t;
template <class T, T v> struct integral_constant { static constexpr T value = v; using type = integral_constant; constexpr __device__ operator T() const { return v; } };
typedef integral_constant<bool, true> true_type; typedef integral_constant<bool, false> false_type;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct numeric_limits;
template <> struct numeric_limits<int> { __device__ static constexpr int max() { return 2147483647; } };
template <class T> __device__ T max(const T& a, const T& b) { return a < b ? b : a; }
template <class T, size_t N> struct array { T elems[N]; __device__ T& operator[](size_t i) { return elems[i]; } __device__ constexpr size_t size() const { return N; } };
namespace detail { template <class T> struct identity { using type = T; }; }
using ::sqrt;
using ::abs;
}

// program own_type_traits: 1 0 2147483647 7
extern "C" __global__ void own_type_traits(int* out) {
    out[0] = std::is_same<int, std::remove_reference<int&>::type>::value; out[1] = ::std::is_same<int, std::detail::identity<char>::type>(); out[2] = std::numeric_limits<int>::max();
    std::array<int, 3> a{{1, 2, 7}}; out[3] = a[a.size() - 1];
}

// program moves_and_lists: 3 9 5
template <class T> __device__ int taken(T&& v) { return std::forward<T>(v); }
extern "C" __global__ void moves_and_lists(int* out) {
    int v = 3; out[0] = taken(std::move(v)); out[1] = std::max(4, 9); out[2] = (int)std::sqrt(25.0f);
}

// program using_directive: 1 4 2
using namespace std;
extern "C" __global__ void using_directive(int* out) { out[0] = is_same<float, float>::value; out[1] = max(3, 4); out[2] = (int)sqrt(4.0); }

// program own_library_namespaces: 1 2
namespace cuda { namespace std { template <class T> struct optional { T v; }; } template <class T> struct atomic { T v; }; }
namespace thrust { template <class T> struct complex { T re; }; }
extern "C" __global__ void own_library_namespaces(int* out) { out[0] = cuda::std::optional<int>{1}.v; out[1] = ::cuda::atomic<int>{2}.v * thrust::complex<int>{1}.re; }

// program variables_in_own_namespaces: 7
namespace std { __device__ int kept = 3; template <class T> __global__ void store(T* p) { p[0] = kept; } }
namespace hearth { __device__ int kept = 4; struct Kernel { int a; }; extern "C" __global__ void variables_in_own_namespaces(int* out) { out[0] = std::kept + ::hearth::kept; } }
