// The memory of the launcher in huge pages. A run holds all its scenarios and cases, some 100 MB, and forks each rank.
// A fork copies a page-table entry per page, and the end of the rank removes them again: with pages of 4 KiB, a quarter
// of the time of a short case.
#pragma once

namespace lockstep::launch {

// Moves the heap that this process has now to pages of 2 MiB, where the system has them. Elsewhere it does nothing.
void move_heap_to_huge_pages() noexcept;

}  // namespace lockstep::launch
