// g++ -std=c++20 -I. tests/all.cpp -o all
// Every test as one unit. The list is kept whole by tests/tidy.py: `tests/tidy.py --write-all`.
#include "tests/main.cpp"

#include "tests/base_test.cpp"
#include "tests/crc32c_test.cpp"
#include "tests/endpoint_test.cpp"
