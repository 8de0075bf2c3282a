// Huge pages for memory that is read at random.
//
// The TLB knows a few thousand pages. Of gigabytes in pages of 4 KiB nearly every row that is read at random is in none
// of these, and its address is looked up in page tables first, which takes a virtual machine longer than the row. The
// system gives huge pages to who asks before memory is written; what a caller brings, and shared memory, has none.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld {

// Size of a huge page; 0 where the system has none, or gives none to anybody ("never" in transparent_hugepage/enabled).
size_t huge_page_bytes();

// Moves the whole huge pages of a range into huge pages (MADV_COLLAPSE, from Linux 6.1 on), which copies it once, 2 to
// 4 GB a second: addresses and values stay, and other threads and processes may read and write meanwhile. Left as they
// are: pages that a fork shares with this process, which would be copied for each of them; parts that mostly were never
// written, which would take memory; files; and all of it where the system does not do it. How many bytes are in
// huge pages then, of those that were looked at. The range may be unmapped, or another's, by now.
size_t move_to_huge_pages(uintptr_t begin, size_t nbytes);

}  // namespace gld
