#include "common/malloc_settings.h"

#include <cstdlib>  // defines __GLIBC__, where it is that

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <climits>

namespace gld {

bool return_large_blocks(size_t nbytes) {
#ifdef __GLIBC__
  const int threshold = static_cast<int>(std::min<size_t>(nbytes, INT_MAX));
  // Each of the two ends malloc's own adjustment of both. A heap may keep as much at its end as blocks in it have,
  // or each of these would be taken from the system, too.
  return mallopt(M_MMAP_THRESHOLD, threshold) == 1 && mallopt(M_TRIM_THRESHOLD, threshold) == 1;
#else
  static_cast<void>(nbytes);
  return false;
#endif
}

}  // namespace gld
