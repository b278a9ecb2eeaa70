// g++ -std=c++20 -O2 -I. tests/gate_cost/gate_adds.cpp -o gate_adds
// The same with a gate that adds up what leaves.
#define GATE_ADDS
#include "gate_cost.cpp"
#include "netio.hpp"  // for whoever asks what this is made of
