// CUDA's vector types with CUDA's alignments. Generated names are CUDA's own; no operators, because CUDA has none and
// programs define their own.
#pragma once

#define HEARTH_VECTOR1(name, type) \
    struct name##1 { type x; }; \
    inline constexpr name##1 make_##name##1(type x) { return name##1{x}; }
#define HEARTH_VECTOR2(name, type, align) \
    struct __attribute__((aligned(align))) name##2 { type x, y; }; \
    inline constexpr name##2 make_##name##2(type x, type y) { return name##2{x, y}; }
#define HEARTH_VECTOR3(name, type) \
    struct name##3 { type x, y, z; }; \
    inline constexpr name##3 make_##name##3(type x, type y, type z) { return name##3{x, y, z}; }
#define HEARTH_VECTOR4(name, type, align) \
    struct __attribute__((aligned(align))) name##4 { type x, y, z, w; }; \
    inline constexpr name##4 make_##name##4(type x, type y, type z, type w) { return name##4{x, y, z, w}; }
#define HEARTH_VECTORS(name, type, align2, align4) \
    HEARTH_VECTOR1(name, type) HEARTH_VECTOR2(name, type, align2) HEARTH_VECTOR3(name, type) \
    HEARTH_VECTOR4(name, type, align4)

HEARTH_VECTORS(char, signed char, 2, 4)
HEARTH_VECTORS(uchar, unsigned char, 2, 4)
HEARTH_VECTORS(short, short, 4, 8)
HEARTH_VECTORS(ushort, unsigned short, 4, 8)
HEARTH_VECTORS(int, int, 8, 16)
HEARTH_VECTORS(uint, unsigned int, 8, 16)
HEARTH_VECTORS(long, long, 16, 16)
HEARTH_VECTORS(ulong, unsigned long, 16, 16)
HEARTH_VECTORS(longlong, long long, 16, 16)
HEARTH_VECTORS(ulonglong, unsigned long long, 16, 16)
HEARTH_VECTORS(float, float, 8, 16)
HEARTH_VECTORS(double, double, 16, 16)

#undef HEARTH_VECTORS
#undef HEARTH_VECTOR1
#undef HEARTH_VECTOR2
#undef HEARTH_VECTOR3
#undef HEARTH_VECTOR4

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};
