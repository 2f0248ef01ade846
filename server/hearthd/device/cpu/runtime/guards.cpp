#include "guards.h"

#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "../include/hearth/abi.h"
#include "divide.h"
#include "faults.h"

namespace hearth {

struct Guard {
    // Opening a page splits a mapping in three; by default the kernel allows a process 65530 mappings.
    static constexpr uint32_t most_pages = 1024, most_strays = 64;

    std::atomic<bool> used;
    std::atomic<bool> armed;
    uint64_t begin, end;            // of the reserved addresses
    uint64_t near_begin, near_end;  // pages of the `size` bytes
    uint64_t open_begin, open_end;  // pages of the array
    uint64_t array;
    std::atomic<uint32_t> pages, count;
    Stray strays[most_strays];
};

namespace {

constexpr uint64_t reaches[] = {uint64_t{64} << 30, uint64_t{4} << 30, uint64_t{64} << 20};
constexpr uint64_t least_alignment = 16, most_alignment = 256;
Guard guards[64];

uint64_t page_bytes() {
    static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

uint64_t down(uint64_t at) { return at & ~(page_bytes() - 1); }
uint64_t up(uint64_t at) { return down(at + page_bytes() - 1); }

bool protect(uint64_t begin, uint64_t end, int rights) {
    return begin >= end || mprotect(reinterpret_cast<void *>(begin), end - begin, rights) == 0;
}

uint32_t kind_of(void *context) {
#if defined(__x86_64__) && defined(REG_ERR)
    return (static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0 ? 2 : 1;
#else
    static_cast<void>(context);
    return 0;
#endif
}

bool map(Guard &guard, uint64_t size, uint64_t inside, uint64_t inner) {
    const uint64_t page = page_bytes(), whole = up(size) + 2 * page;
    for (const uint64_t reach : reaches) {
        void *const memory = mmap(
            nullptr, whole + 2 * reach, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) continue;
        guard.begin = reinterpret_cast<uint64_t>(memory);
        guard.end = guard.begin + whole + 2 * reach;
        const uint64_t lowest = inner & (~inner + 1);
        const uint64_t alignment = std::clamp(lowest, least_alignment, most_alignment);
        const uint64_t padded = (inner + alignment - 1) & ~(alignment - 1);
        guard.open_end = up(guard.begin + reach + inside + padded);
        guard.array = guard.open_end - padded;
        guard.open_begin = inner == 0 ? guard.open_end : down(guard.array);
        guard.near_begin = down(guard.array - inside);
        guard.near_end = up(guard.array - inside + size);
        if (protect(guard.near_begin, guard.near_end, PROT_READ | PROT_WRITE)) return true;
        munmap(memory, guard.end - guard.begin);
        return false;
    }
    return false;
}

}  // namespace

bool open_guard(const void *place, void *context) {
    const uint64_t address = reinterpret_cast<uint64_t>(place);
    for (Guard &guard : guards) {
        if (!guard.armed.load(std::memory_order_acquire) || address < guard.begin || address >= guard.end) continue;
        if (guard.pages.fetch_add(1) >= Guard::most_pages) return false;
        const uint32_t kind = kind_of(context), at = guard.count.fetch_add(1);
        if (at < Guard::most_strays) {
            const Index &block = hearth_tls.block_idx;
            guard.strays[at] = {static_cast<int64_t>(address - guard.array), kind, {block.x, block.y, block.z}};
        }
        // After a read the page stays write-protected, so that a write to it is recorded as well.
        const uint64_t page = down(address);
        return protect(page, page + page_bytes(), kind == 1 ? PROT_READ : PROT_READ | PROT_WRITE);
    }
    return false;
}

}  // namespace hearth

extern "C" {

hearth::Guard *hearth_guard_make(uint64_t size, uint64_t inside, uint64_t inner, uint64_t *first) {
    hearth::watch_faults();
    for (hearth::Guard &guard : hearth::guards) {
        if (guard.used.exchange(true)) continue;
        if (!hearth::map(guard, size, inside, inner)) {
            guard.used.store(false);
            return nullptr;
        }
        guard.pages.store(0);
        guard.count.store(0);
        *first = guard.array - inside;
        return &guard;
    }
    return nullptr;
}

void hearth_guard_arm(hearth::Guard *guard) {
    guard->armed.store(true, std::memory_order_release);
    hearth::protect(guard->near_begin, guard->open_begin, PROT_NONE);
    hearth::protect(guard->open_end, guard->near_end, PROT_NONE);
}

void hearth_guard_disarm(hearth::Guard *guard) {
    hearth::protect(guard->near_begin, guard->near_end, PROT_READ | PROT_WRITE);
    guard->armed.store(false, std::memory_order_release);
}

uint32_t hearth_guard_strays(const hearth::Guard *guard, hearth::Stray *strays, uint32_t most) {
    const uint32_t count = std::min({guard->count.load(), hearth::Guard::most_strays, most});
    std::copy_n(guard->strays, count, strays);
    return count;
}

void hearth_guard_free(hearth::Guard *guard) {
    guard->armed.store(false);
    munmap(reinterpret_cast<void *>(guard->begin), guard->end - guard->begin);
    guard->used.store(false);
}

}
