// g++ -std=c++20 -O2 -I. tests/gate_cost/gate_admits.cpp -o gate_admits
// The same with a gate that only admits.
#define GATE_ADMITS
#include "gate_cost.cpp"
#include "netio.hpp"  // for whoever asks what this is made of
