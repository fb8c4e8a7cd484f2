// The UUID of an emulated GPU, which the driver and the management library must tell alike.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace emulation {

// A GPU of this number on this host. As with real ones, no other host has a GPU with the same UUID.
inline void write_uuid(int gpu, unsigned char uuid[16]) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    // FNV-1a.
    uint64_t hash = 0xCBF29CE484222325u;
    for (const char *letter = host; *letter; ++letter) hash = (hash ^ uint8_t(*letter)) * 0x100000001B3u;
    memset(uuid, 0xEE, 16);
    memcpy(uuid + 7, &hash, sizeof hash);
    uuid[15] = uint8_t(gpu);
}

}  // namespace emulation
