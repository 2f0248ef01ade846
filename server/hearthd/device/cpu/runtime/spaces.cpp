// The address ranges of a worker: the thread-local storage of a module, and stacks. See include/hearth/spaces.h.
#include "../include/hearth/spaces.h"

#include <link.h>
#include <pthread.h>

#include "fiber.h"

namespace hearth {
namespace {

struct Search {
    uintptr_t inside;
    ModuleStorage found;
};

int look_at(dl_phdr_info *info, size_t, void *context) {
    Search &search = *static_cast<Search *>(context);
    bool holds = false;
    size_t bytes = 0;
    for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD) holds |= search.inside - (info->dlpi_addr + part.p_vaddr) < part.p_memsz;
        if (part.p_type == PT_TLS) bytes = part.p_memsz;
    }
    if (holds) search.found = ModuleStorage{info->dlpi_tls_modid, bytes};
    return holds;
}

Range own_stack() {
    pthread_attr_t attributes;
    void *begin = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &begin, &bytes);
        pthread_attr_destroy(&attributes);
    }
    return Range{begin, bytes};
}

}  // namespace
}  // namespace hearth

extern "C" {

// The dynamic loader's function for the address of a variable in a module's thread-local storage (ELF Handling For
// Thread-Local Storage, section 3).
struct HearthTlsIndex {
    unsigned long module, offset;
};
void *__tls_get_addr(HearthTlsIndex *);

hearth::ModuleStorage hearth_module_storage(const void *inside) {
    hearth::Search search{reinterpret_cast<uintptr_t>(inside), {0, 0}};
    dl_iterate_phdr(hearth::look_at, &search);
    return search.found;
}

const unsigned char *hearth_storage_begin(size_t module) {
    HearthTlsIndex index{module, 0};
    return static_cast<const unsigned char *>(__tls_get_addr(&index));
}

// True for addresses on the stack of this worker, and on the stacks of suspended threads of its block. Kernels must not
// use pointers to the stacks of other workers.
bool hearth_on_stack(const void *p) {
    static thread_local const hearth::Range own = hearth::own_stack();
    return hearth::within(own, p) || hearth::within(hearth::fiber_stacks, p);
}

}
