// clang++ -std=c++20 -O1 -g -I. -fsanitize=fuzzer,address,undefined fuzz/handoff_list_fuzz.cpp -o handoff_list_fuzz
// The input is a list without its checksum, which is made to fit: else nothing would get past it.
#include "netio.hpp"

#include <cstdlib>
#include <vector>

namespace {

void require(bool held) {
    if (!held) {
        std::abort();
    }
}

void look_at(netio::bytes whole) {
    const std::vector<std::byte> in(whole.begin(), whole.end());  // a read past it is seen
    const auto got = netio::parse_handoff(in);
    if (got.status == netio::parse_status::incomplete) {
        require(got.missing >= 1 && in.size() + got.missing <= netio::handoff_bytes_max);
        return;
    }
    if (got.status == netio::parse_status::invalid) {
        require(got.why != netio::error::none && got.consumed == 0);
        return;
    }
    require(got.consumed <= in.size() && got.value.count >= 1);
    // A list has one form: written again it is the same.
    std::vector<std::byte> again(netio::handoff_bytes_max);
    again.resize(netio::encode_handoff({got.value.entries, got.value.count}, again));
    require(again.size() == got.consumed);
    require(std::memcmp(again.data(), in.data(), again.size()) == 0);
    for (std::size_t count = 0; count < got.consumed; count += 1 + got.consumed / 64) {
        require(netio::parse_handoff(std::span(in).first(count)).status ==
                netio::parse_status::incomplete);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t count) {
    const netio::bytes in{reinterpret_cast<const std::byte*>(data), count};
    look_at(in);
    std::vector<std::byte> sealed(in.begin(), in.end());
    sealed.resize(count + 4);
    if (sealed.size() >= 16) {
        netio::detail::store_little(sealed.data() + 12, static_cast<std::uint32_t>(sealed.size()));
    }
    const std::uint32_t sum = netio::crc32c(std::span(sealed).first(count));
    netio::detail::store_little(sealed.data() + count, sum);
    look_at(sealed);
    return 0;
}
