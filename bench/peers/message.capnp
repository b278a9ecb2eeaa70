# The message of bench/rpc_fixture.hpp. What is typed there is typed here; the list and the map hold
# values of any kind.
@0xb7d3a1c5e94f2068;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("netio_bench::capnproto");

struct Value {
  union {
    nothing @0 :Void;
    truth @1 :Bool;
    integer @2 :Int64;
    real @3 :Float64;
    text @4 :Text;
  }
}

struct Entry {
  key @0 :Text;
  held @1 :Value;
}

struct Capability {
  id @0 :Data;
  methods @1 :List(Text);
  callsMax @2 :UInt64;
  bytesMax @3 :UInt64;
  wallMsMax @4 :UInt64;
  nodesMax @5 :UInt64;
  depthMax @6 :UInt64;
  arrayMax @7 :UInt64;
  valueBytesMax @8 :UInt64;
  readOnly @9 :Bool;
  redact @10 :Bool;
}

struct Request {
  requestId @0 :UInt64;
  method @1 :Text;
  number @2 :Int64;
  promise @3 :UInt64;
  target @4 :Data;
  path @5 :Text;
  list @6 :List(Value);
  map @7 :List(Entry);
  text @8 :Text;
  moduleContent @9 :Data;
  offered @10 :List(Capability);
}

# For a call through its own RPC: the same message in, a number out.
interface Compiler {
  compile @0 (request :Request) -> (sum :UInt64);
}
