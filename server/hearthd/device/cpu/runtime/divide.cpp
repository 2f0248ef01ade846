#include "divide.h"

#include <stdint.h>

#if defined(__x86_64__)
#include <ucontext.h>
#endif

thread_local bool hearth::in_kernel = false;

#if defined(__x86_64__)

namespace hearth {
namespace {

// The instruction at which the processor stopped: `div` or `idiv` (Intel SDM, volume 2: F6 and F7, /6 and /7).
struct Division {
    unsigned bytes;     // of an operand
    bool is_signed;
    bool divides_by_zero;  // false also if the divisor is in memory, and thus unknown
    const unsigned char *end;
};

// The general registers by their numbers in an instruction.
constexpr int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

uint64_t low(uint64_t value, unsigned bytes) { return bytes == 8 ? value : value & ((uint64_t{1} << (8 * bytes)) - 1); }

bool decode(const greg_t *r, Division &found) {
    auto at = reinterpret_cast<const unsigned char *>(r[REG_RIP]);
    bool half = false;
    for (;; ++at) {
        if (*at == 0x66) half = true;
        else if (*at != 0x2e && *at != 0x36 && *at != 0x3e && *at != 0x26 && *at != 0x64 && *at != 0x65 && *at != 0x67 &&
                 *at != 0xf2 && *at != 0xf3) break;
    }
    unsigned rex = 0;
    if ((*at & 0xf0) == 0x40) rex = *at++;
    const unsigned opcode = *at++;
    if (opcode != 0xf6 && opcode != 0xf7) return false;
    const unsigned modrm = *at++, mode = modrm >> 6, operation = modrm >> 3 & 7, place = modrm & 7;
    if (operation != 6 && operation != 7) return false;
    found.bytes = opcode == 0xf6 ? 1 : (rex & 8) != 0 ? 8 : half ? 2 : 4;
    found.is_signed = operation == 7;
    found.divides_by_zero = false;
    if (mode == 3) {
        const bool high = found.bytes == 1 && rex == 0 && place >= 4;  // ah, ch, dh, bh
        const uint64_t whole = static_cast<uint64_t>(r[registers[high ? place - 4 : place | (rex & 1) << 3]]);
        found.divides_by_zero = low(high ? whole >> 8 : whole, found.bytes) == 0;
    } else {
        const unsigned base = place == 4 ? *at++ & 7u : place;  // with a SIB byte its base
        if (mode == 1) at += 1;
        else if (mode == 2 || base == 5) at += 4;
    }
    found.end = at;
    return true;
}

// As on NVIDIA's GPUs, the quotient of a division by zero has all bits set, and the remainder is the dividend (CUDA
// leaves both undefined); the lowest number divided by -1 wraps to itself.
bool divide(greg_t *r) {
    Division division;
    if (!decode(r, division)) return false;
    const unsigned bytes = division.bytes;
    const uint64_t dividend = low(static_cast<uint64_t>(r[REG_RAX]), bytes), lowest = uint64_t{1} << (8 * bytes - 1);
    const bool wraps = division.is_signed && dividend == lowest && !division.divides_by_zero;
    const uint64_t quotient = wraps ? dividend : low(~uint64_t{0}, bytes), rest = wraps ? 0 : dividend;
    const auto put = [r, bytes](int which, uint64_t value) {
        // A 16-bit write keeps the upper bits of the register, a 32-bit write clears them.
        const uint64_t kept = bytes == 2 ? static_cast<uint64_t>(r[which]) & ~uint64_t{0xffff} : 0;
        r[which] = static_cast<greg_t>(kept | value);
    };
    if (bytes == 1) {
        r[REG_RAX] = static_cast<greg_t>((static_cast<uint64_t>(r[REG_RAX]) & ~uint64_t{0xffff}) | rest << 8 | quotient);
    } else {
        put(REG_RAX, quotient);
        put(REG_RDX, rest);
    }
    r[REG_RIP] = reinterpret_cast<greg_t>(division.end);
    return true;
}

}  // namespace

bool divide_by_definition(void *context) { return divide(static_cast<ucontext_t *>(context)->uc_mcontext.gregs); }

}  // namespace hearth

#else

// Elsewhere the instruction itself has a result: zero on 64-bit Arm.
bool hearth::divide_by_definition(void *) { return false; }

#endif
