// The process's heap.
#pragma once

namespace headrace {

// Whether memory that is freed stays with the process for the next tensor, in place of going back to the system page by page.
// Torch's CPU tensors come from malloc, and touching fresh pages costs more than most operations on them. No effect but with glibc.
void keep_freed_memory(bool keep);

}  // namespace headrace
