// A program with the tuple protocol of the language and no header for it.
namespace std { template <class T> struct tuple_size; template <size_t I, class T> struct tuple_element; }
// program tuple_protocol: 4 3
class Duo { int a_ = 3, b_ = 4; public: template <int I> __device__ int get() const { return I == 0 ? b_ : a_; } };
namespace std { template <> struct tuple_size<Duo> { static constexpr int value = 2; }; template <size_t I> struct tuple_element<I, Duo> { using type = int; }; }
extern "C" __global__ void tuple_protocol(int* out) { auto [a, b] = Duo(); out[0] = a; out[1] = b; }
