// Replays files and folders through a fuzz target where there is no libFuzzer:
//   g++ -std=c++20 -I. fuzz/proxy_fuzz.cpp fuzz/replay_main.cpp -o replay
//   ./replay fuzz/corpus/proxy
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count);

namespace {

namespace files = std::filesystem;

/// The files below `named`, in a stable order; `named` itself if it is a file.
std::vector<files::path> inputs_below(const files::path& named) {
    std::vector<files::path> found;
    if (!files::is_directory(named)) {
        found.push_back(named);
        return found;
    }
    for (const auto& entry : files::recursive_directory_iterator(named)) {
        if (entry.is_regular_file()) {
            found.push_back(entry.path());
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

bool replay(const files::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        std::fprintf(stderr, "replay: %s: cannot be read\n", path.c_str());
        return false;
    }
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    // A copy of exactly this size, so that a sanitizer sees the first byte past the end.
    const std::vector<std::uint8_t> data(text.begin(), text.end());
    static_cast<void>(LLVMFuzzerTestOneInput(data.data(), data.size()));
    return true;
}

}  // namespace

int main(int argument_count, char** arguments) {
    if (argument_count < 2) {
        std::fprintf(stderr, "usage: %s FILE_OR_FOLDER...\n", arguments[0]);
        return 2;
    }
    std::size_t input_count = 0;
    for (int at = 1; at < argument_count; ++at) {
        const files::path named = arguments[at];
        if (!files::exists(named)) {
            std::fprintf(stderr, "replay: %s: no such file or folder\n", arguments[at]);
            return 1;
        }
        for (const files::path& path : inputs_below(named)) {
            if (!replay(path)) {
                return 1;
            }
            ++input_count;
        }
    }
    if (input_count == 0) {
        std::fprintf(stderr, "replay: no input in %s\n", arguments[1]);
        return 1;
    }
    std::printf("replayed %zu inputs\n", input_count);
    return 0;
}
