// g++ -std=c++20 -I. tests/all.cpp -o all
// Every test as one unit. The list is kept whole by tests/tidy.py: `tests/tidy.py --write-all`.
#include "tests/main.cpp"

#include "tests/base_test.cpp"
#include "tests/buffer_pool_test.cpp"
#include "tests/crc32c_test.cpp"
#include "tests/endpoint_test.cpp"
#include "tests/envelope_test.cpp"
#include "tests/epoll_test.cpp"
#include "tests/post_queue_test.cpp"
#include "tests/proxy_test.cpp"
#include "tests/server_proxy_test.cpp"
#include "tests/server_test.cpp"
#include "tests/simulator_test.cpp"
#include "tests/slab_test.cpp"
#include "tests/wheel_test.cpp"
