// The process's heap.
#pragma once

namespace headrace {

// Whether memory that is freed stays with the process for the next tensor, in place of going back to the system page by page.
// Torch's CPU tensors come from malloc, and touching fresh pages costs more than most operations on them. No effect but with glibc.
void keep_freed_memory(bool keep);

// Threads that begin later allocate from the heap of the first one. glibc gives them heaps of their own, of 64 MiB at most: a large
// tensor has no room there, and when one is empty its pages go back to the system whatever is to be kept. No effect but with glibc.
void share_one_heap();

}  // namespace headrace
