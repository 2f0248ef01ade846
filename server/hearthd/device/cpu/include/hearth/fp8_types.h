// One, two and four numbers of an eight-bit format as structures. Included once for each format, so it has no guard.
// The includer defines HEARTH_F8, HEARTH_F8X2 and HEARTH_F8X4 (their names), HEARTH_F8_ENCODE (bits of a float or a
// double) and HEARTH_F8_DECODE (the float); this file removes them.

struct __attribute__((aligned(1))) HEARTH_F8 {
    __nv_fp8_storage_t __x;

    HEARTH_F8() = default;
    explicit constexpr HEARTH_F8(hearth::Fp8Bits storage) : __x(storage.bits) {}
    explicit HEARTH_F8(__half f) : __x(HEARTH_F8_ENCODE(hearth::wide(f))) {}
    explicit HEARTH_F8(__nv_bfloat16 f) : __x(HEARTH_F8_ENCODE(hearth::wide(f))) {}
    explicit HEARTH_F8(float f) : __x(HEARTH_F8_ENCODE(f)) {}
    explicit HEARTH_F8(double f) : __x(HEARTH_F8_ENCODE(f)) {}
    explicit HEARTH_F8(short i) : __x(HEARTH_F8_ENCODE(static_cast<float>(i))) {}
    explicit HEARTH_F8(unsigned short i) : __x(HEARTH_F8_ENCODE(static_cast<float>(i))) {}
    explicit HEARTH_F8(int i) : __x(HEARTH_F8_ENCODE(static_cast<double>(i))) {}
    explicit HEARTH_F8(unsigned i) : __x(HEARTH_F8_ENCODE(static_cast<double>(i))) {}
    explicit HEARTH_F8(long i) : __x(HEARTH_F8_ENCODE(of_integer(i))) {}
    explicit HEARTH_F8(unsigned long i) : __x(HEARTH_F8_ENCODE(of_integer(i))) {}
    explicit HEARTH_F8(long long i) : __x(HEARTH_F8_ENCODE(of_integer(i))) {}
    explicit HEARTH_F8(unsigned long long i) : __x(HEARTH_F8_ENCODE(of_integer(i))) {}

    explicit operator float() const { return HEARTH_F8_DECODE(__x); }
    explicit operator double() const { return static_cast<double>(HEARTH_F8_DECODE(__x)); }
    explicit operator __half() const { return hearth::half_of(HEARTH_F8_DECODE(__x)); }
    explicit operator __nv_bfloat16() const { return hearth::bfloat16_of(HEARTH_F8_DECODE(__x)); }
    explicit operator signed char() const { return hearth::saturating<signed char>(HEARTH_F8_DECODE(__x)); }
    explicit operator unsigned char() const { return hearth::saturating<unsigned char>(HEARTH_F8_DECODE(__x)); }
    explicit operator char() const { return hearth::saturating<char>(HEARTH_F8_DECODE(__x)); }
    explicit operator short() const { return hearth::saturating<short>(HEARTH_F8_DECODE(__x)); }
    explicit operator unsigned short() const { return hearth::saturating<unsigned short>(HEARTH_F8_DECODE(__x)); }
    explicit operator int() const { return hearth::saturating<int>(HEARTH_F8_DECODE(__x)); }
    explicit operator unsigned() const { return hearth::saturating<unsigned>(HEARTH_F8_DECODE(__x)); }
    explicit operator long() const { return hearth::saturating<long>(HEARTH_F8_DECODE(__x)); }
    explicit operator unsigned long() const { return hearth::saturating<unsigned long>(HEARTH_F8_DECODE(__x)); }
    explicit operator long long() const { return hearth::saturating<long long>(HEARTH_F8_DECODE(__x)); }
    explicit operator unsigned long long() const { return hearth::saturating<unsigned long long>(HEARTH_F8_DECODE(__x)); }
    explicit operator bool() const { return HEARTH_F8_DECODE(__x) != 0; }

private:
    // A double cannot hold every integer of 64 bits. The low bits only determine on which side of a number of this
    // format the integer is, so they are combined to one bit.
    template <class Integer>
    static double of_integer(Integer i) {
        const bool negative = i < 0;
        unsigned long long size = static_cast<unsigned long long>(i);
        if (negative) size = 0 - size;
        if (size >> 32 != 0) size = (size >> 20 << 20) | static_cast<unsigned long long>((size & 0xfffff) != 0) << 19;
        return negative ? -static_cast<double>(size) : static_cast<double>(size);
    }
};

struct __attribute__((aligned(2))) HEARTH_F8X2 {
    __nv_fp8x2_storage_t __x;

    HEARTH_F8X2() = default;
    explicit HEARTH_F8X2(__half2 v) : __x(packed(hearth::wide(v.x), hearth::wide(v.y))) {}
    explicit HEARTH_F8X2(__nv_bfloat162 v) : __x(packed(hearth::wide(v.x), hearth::wide(v.y))) {}
    explicit HEARTH_F8X2(float2 v) : __x(packed(v.x, v.y)) {}
    explicit HEARTH_F8X2(double2 v) : __x(packed(v.x, v.y)) {}
    explicit operator float2() const {
        return float2{HEARTH_F8_DECODE(static_cast<unsigned char>(__x)), HEARTH_F8_DECODE(static_cast<unsigned char>(__x >> 8))};
    }
    explicit operator __half2() const {
        const float2 v = static_cast<float2>(*this);
        return __half2(hearth::half_of(v.x), hearth::half_of(v.y));
    }
    explicit operator __nv_bfloat162() const {
        const float2 v = static_cast<float2>(*this);
        return __nv_bfloat162(hearth::bfloat16_of(v.x), hearth::bfloat16_of(v.y));
    }

    template <class T>
    static __nv_fp8x2_storage_t packed(T x, T y) {
        return static_cast<__nv_fp8x2_storage_t>(hearth::both(HEARTH_F8_ENCODE(x), HEARTH_F8_ENCODE(y), 8));
    }
};

struct __attribute__((aligned(4))) HEARTH_F8X4 {
    __nv_fp8x4_storage_t __x;

    HEARTH_F8X4() = default;
    HEARTH_F8X4(__half2 low, __half2 high) : __x(hearth::both(HEARTH_F8X2(low).__x, HEARTH_F8X2(high).__x, 16)) {}
    HEARTH_F8X4(__nv_bfloat162 low, __nv_bfloat162 high)
        : __x(hearth::both(HEARTH_F8X2(low).__x, HEARTH_F8X2(high).__x, 16)) {}
    explicit HEARTH_F8X4(float4 v) : __x(hearth::both(HEARTH_F8X2::packed(v.x, v.y), HEARTH_F8X2::packed(v.z, v.w), 16)) {}
    explicit HEARTH_F8X4(double4 v) : __x(hearth::both(HEARTH_F8X2::packed(v.x, v.y), HEARTH_F8X2::packed(v.z, v.w), 16)) {}
    explicit operator float4() const {
        return float4{HEARTH_F8_DECODE(static_cast<unsigned char>(__x)), HEARTH_F8_DECODE(static_cast<unsigned char>(__x >> 8)),
                      HEARTH_F8_DECODE(static_cast<unsigned char>(__x >> 16)),
                      HEARTH_F8_DECODE(static_cast<unsigned char>(__x >> 24))};
    }
};

#undef HEARTH_F8
#undef HEARTH_F8X2
#undef HEARTH_F8X4
#undef HEARTH_F8_ENCODE
#undef HEARTH_F8_DECODE
