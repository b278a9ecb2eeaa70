// c++ -std=c++20 -O2 -I. tests/linear/decode.cpp -o decode
//
// Decodes an envelope of so many maps so many times, and prints its size and the time of one:
// decode ARGUMENTS ROUNDS. tests/envelope_linear_test.py counts what it reads.
#include "netio.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int count, char** words) {
    namespace rpc = netio::rpc;
    if (count != 3) {
        return 2;
    }
    static std::byte room[1 << 18];
    rpc::writer out(room);
    out.begin(rpc::envelope_kind::request, 1, "many");
    for (long left = std::atol(words[1]); left > 0; --left) {
        out.value_map().key("a").value_int(left).key("b").value_text("some text").end();
    }
    const std::size_t size = out.finish();
    bool good = size != 0;
    const auto before = std::chrono::steady_clock::now();
    const long rounds = std::atol(words[2]);
    for (long left = rounds; left > 0; --left) {
        good = rpc::decode({room, size}).status == netio::parse_status::complete && good;
    }
    const std::chrono::duration<double, std::nano> spent =
        std::chrono::steady_clock::now() - before;
    std::printf("%zu %.0f\n", size, spent.count() / static_cast<double>(rounds));
    return good ? 0 : 1;
}
