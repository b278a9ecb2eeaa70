// Links units of three check levels: their inline functions carry different names, so the linker
// never picks one unit's body for another's.
#include "netio.hpp"

#include <cstdio>
#include <cstring>

const char* text_without_checks(unsigned code) noexcept;
const char* text_with_checks(unsigned code) noexcept;

int main() {
    const auto code = static_cast<unsigned>(netio::error::full);
    const char* here = netio::text(netio::error::full);
    const bool same = std::strcmp(here, text_without_checks(code)) == 0 &&
                      std::strcmp(here, text_with_checks(code)) == 0;
    std::printf("check levels %s\n", same ? "link" : "disagree");
    return same ? 0 : 1;
}
