// Checksums of files.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gld {

// CRC-32 (the polynomial 0x04C11DB7 of zlib, PNG and gzip) of bytes that follow others whose CRC-32 is `before`; 0
// where none came before. By products of polynomials where the machine has them (V. Gopal et al., Fast CRC computation
// for generic polynomials using PCLMULQDQ instruction, Intel 2009), else by tables, eight bytes at a time.
uint32_t crc32(const void* bytes, size_t nbytes, uint32_t before);

// The same by tables, on every machine.
uint32_t crc32_by_tables(const void* bytes, size_t nbytes, uint32_t before);

}  // namespace gld
