// The PROXY vectors: bytes in hex and what a receiver must make of them.
#ifndef NETIO_TESTS_PROXY_VECTORS_HPP
#define NETIO_TESTS_PROXY_VECTORS_HPP

struct proxy_vector {
    const char* id;
    const char* hex;
    const char* expected;
};

inline constexpr proxy_vector proxy_vectors[] = {
    // plain IPv4
    {"A01",
     "50524f58592054435034203139322e302e322e31203139322e302e322e3220353633323420343433"
     "0d0a",
     "accept 42 of 42: TCP4 192.0.2.1:56324 -> 192.0.2.2:443"},
    // payload in the same segment must stay in the stream
    {"A02",
     "50524f58592054435034203139322e302e322e31203139322e302e322e3220353633323420343433"
     "0d0a474554202f20485454502f312e310d0a",
     "accept 42 of 58: TCP4 192.0.2.1:56324 -> 192.0.2.2:443"},
    // longest TCP4 line
    {"A03",
     "50524f58592054435034203235352e3235352e3235352e323535203235352e3235352e3235352e32"
     "35352036353533352036353533350d0a",
     "accept 56 of 56: TCP4 255.255.255.255:65535 -> 255.255.255.255:65535"},
    // port 0 and all-zero addresses are in range
    {"A04",
     "50524f5859205443503420302e302e302e3020302e302e302e30203020300d0a",
     "accept 32 of 32: TCP4 0.0.0.0:0 -> 0.0.0.0:0"},
    // plain IPv6
    {"A05",
     "50524f5859205443503620323030313a6462383a3a3120323030313a6462383a3a32203431323420"
     "3434330d0a",
     "accept 45 of 45: TCP6 [2001:db8::1]:4124 -> [2001:db8::2]:443"},
    // upper-case hex and an uncompressed form
    {"A06",
     "50524f5859205443503620323030313a4442383a3a4120323030313a4442383a303a303a303a303a"
     "303a422034313234203434330d0a",
     "accept 54 of 54: TCP6 [2001:db8::a]:4124 -> [2001:db8::b]:443"},
    // longest TCP6 line
    {"A07",
     "50524f5859205443503620666666663a666666663a666666663a666666663a666666663a66666666"
     "3a666666663a6666666620666666663a666666663a666666663a666666663a666666663a66666666"
     "3a666666663a666666662036353533352036353533350d0a",
     "accept 104 of 104: TCP6 [ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535 -> "
     "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"},
    // IPv4-mapped text that real senders emit
    {"A08",
     "50524f58592054435036203a3a666666663a3139322e302e322e31203a3a666666663a3139322e30"
     "2e322e322035333734302031303030310d0a",
     "accept 58 of 58: TCP6 [::ffff:192.0.2.1]:53740 -> [::ffff:192.0.2.2]:10001"},
    // short form; keep the real socket addresses
    {"A09",
     "50524f585920554e4b4e4f574e0d0a",
     "accept 15 of 15: UNKNOWN, real addresses"},
    // rest of the line ignored
    {"A10",
     "50524f585920554e4b4e4f574e20736f6d65206f74686572206e6f6e73656e73650d0a",
     "accept 35 of 35: UNKNOWN, real addresses"},
    // longest legal line, 107 bytes
    {"A11",
     "50524f585920554e4b4e4f574e20666666663a666666663a666666663a666666663a666666663a66"
     "6666663a666666663a6666666620666666663a666666663a666666663a666666663a666666663a66"
     "6666663a666666663a666666662036353533352036353533350d0a",
     "accept 107 of 107: UNKNOWN, real addresses"},
    // 108 bytes: no CRLF inside the first 107
    {"A12",
     "50524f585920554e4b4e4f574e20666666663a666666663a666666663a666666663a666666663a66"
     "6666663a666666663a6666666620666666663a666666663a666666663a666666663a666666663a66"
     "6666663a666666663a66666666203635353335203635353335200d0a",
     "reject: v1_too_long"},
    // keyword must end at SP or CR
    {"A13",
     "50524f585920554e4b4e4f574e580d0a",
     "reject: v1_proto"},
    // a bare LF does not end the line; the header ends at CRLF
    {"A14",
     "50524f585920554e4b4e4f574e20610a620d0a58",
     "accept 19 of 20: UNKNOWN, real addresses"},
    // not a PROXY header; do not fall back to plain traffic
    {"A15",
     "474554202f20485454502f312e310d0a",
     "reject: not_proxy"},
    // keyword is case sensitive
    {"A16",
     "70726f78792054435034203139322e302e322e31203139322e302e322e32203120320d0a",
     "reject: not_proxy"},
    // protocol token is case sensitive
    {"A17",
     "50524f58592074637034203139322e302e322e31203139322e302e322e32203120320d0a",
     "reject: v1_proto"},
    // unknown token
    {"A18",
     "50524f58592054435035203139322e302e322e31203139322e302e322e32203120320d0a",
     "reject: v1_proto"},
    // nothing after the space
    {"A19",
     "50524f5859200d0a",
     "reject: v1_proto"},
    // two spaces
    {"A20",
     "50524f5859202054435034203139322e302e322e31203139322e302e322e32203120320d0a",
     "reject: v1_proto"},
    // two spaces between addresses
    {"A21",
     "50524f58592054435034203139322e302e322e3120203139322e302e322e32203120320d0a",
     "reject: v1_syntax"},
    // trailing space
    {"A22",
     "50524f58592054435034203139322e302e322e31203139322e302e322e3220312032200d0a",
     "reject: v1_syntax"},
    // tab is not a space
    {"A23",
     "50524f58590954435034203139322e302e322e31203139322e302e322e32203120320d0a",
     "reject: not_proxy"},
    // a field missing
    {"A24",
     "50524f58592054435034203139322e302e322e31203139322e302e322e3220310d0a",
     "reject: v1_syntax"},
    // a field too many
    {"A25",
     "50524f58592054435034203139322e302e322e31203139322e302e322e322031203220330d0a",
     "reject: v1_syntax"},
    // leading zero in an octet
    {"A26",
     "50524f58592054435034203139322e302e322e3031203139322e302e322e32203120320d0a",
     "reject: v1_addr"},
    // octet above 255
    {"A27",
     "50524f58592054435034203139322e302e322e323536203139322e302e322e32203120320d0a",
     "reject: v1_addr"},
    // three octets
    {"A28",
     "50524f58592054435034203139322e302e32203139322e302e322e32203120320d0a",
     "reject: v1_addr"},
    // hex octet
    {"A29",
     "50524f5859205443503420307843302e302e322e31203139322e302e322e32203120320d0a",
     "reject: v1_addr"},
    // family and addresses disagree
    {"A30",
     "50524f5859205443503420323030313a6462383a3a3120323030313a6462383a3a32203120320d0a",
     "reject: v1_addr"},
    // family and addresses disagree
    {"A31",
     "50524f58592054435036203139322e302e322e31203139322e302e322e32203120320d0a",
     "reject: v1_addr"},
    // two double-colon runs
    {"A32",
     "50524f5859205443503620323030313a6462383a3a313a3a3220323030313a6462383a3a32203120"
     "320d0a",
     "reject: v1_addr"},
    // nine groups
    {"A33",
     "50524f5859205443503620313a323a333a343a353a363a373a383a3920323030313a6462383a3a32"
     "203120320d0a",
     "reject: v1_addr"},
    // five hex digits in a group
    {"A34",
     "50524f5859205443503620323030313a6462383a31323334353a3a3120323030313a6462383a3a32"
     "203120320d0a",
     "reject: v1_addr"},
    // zone id
    {"A35",
     "50524f5859205443503620666538303a3a31253120323030313a6462383a3a32203120320d0a",
     "reject: v1_addr"},
    // leading zero in a port
    {"A36",
     "50524f58592054435034203139322e302e322e31203139322e302e322e322030343433203434330d"
     "0a",
     "reject: v1_port"},
    // port above 65535
    {"A37",
     "50524f58592054435034203139322e302e322e31203139322e302e322e3220363535333620343433"
     "0d0a",
     "reject: v1_port"},
    // sign
    {"A38",
     "50524f58592054435034203139322e302e322e31203139322e302e322e32202d31203434330d0a",
     "reject: v1_port"},
    // NUL inside a field
    {"A39",
     "50524f58592054435034203139322e302e322e3100203139322e302e322e32203120320d0a",
     "reject: v1_addr"},
    // bare LF must not end the line
    {"A40",
     "50524f58592054435034203139322e302e322e31203139322e302e322e32203120320a474554202f"
     "20485454502f312e310d0a",
     "reject: v1_syntax"},
    // bare CR must not end the line
    {"A41",
     "50524f58592054435034203139322e302e322e31203139322e302e322e32203120320d474554202f"
     "20485454502f312e310d0a",
     "reject: v1_syntax"},
    // 107 bytes and no CRLF: stop waiting
    {"A42",
     "50524f58592054435036202020202020202020202020202020202020202020202020202020202020"
     "20202020202020202020202020202020202020202020202020202020202020202020202020202020"
     "202020202020202020202020202020202020202020202020202020",
     "reject: v1_too_long"},
    // prefix of a valid line
    {"A43",
     "",
     "need more: at least 1"},
    // prefix of a valid line
    {"A44",
     "50",
     "need more: at least 14"},
    // prefix of a valid line
    {"A45",
     "50524f5859",
     "need more: at least 10"},
    // prefix of a valid line
    {"A46",
     "50524f58592054435034203139322e302e322e31",
     "need more: at least 1"},
    // prefix of a valid line
    {"A47",
     "50524f58592054435034203139322e302e322e31203139322e302e322e3220353633323420343433"
     "0d",
     "need more: at least 1"},
    // LOCAL, smallest legal header
    {"B01",
     "0d0a0d0a000d0a515549540a20000000",
     "accept 16 of 16: LOCAL, real addresses"},
    // LOCAL with an address block: skip it, use the real addresses
    {"B02",
     "0d0a0d0a000d0a515549540a2011000cc0000201c0000202dc0401bb",
     "accept 28 of 28: LOCAL, real addresses"},
    // AWS NLB health check as captured (kubernetes#57250): TLVs follow at once, no address
    // block although the family says IPv4; CRC is right
    {"B03",
     "0d0a0d0a000d0a515549540a20110054030004bce5951f04004a0000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000",
     "accept 100 of 100: LOCAL, real addresses"},
    // LOCAL: family ignored, any content skipped
    {"B04",
     "0d0a0d0a000d0a515549540a20ff00050102030405",
     "accept 21 of 21: LOCAL, real addresses"},
    // LOCAL followed by payload
    {"B05",
     "0d0a0d0a000d0a515549540a2000000050494e470d0a",
     "accept 16 of 22: LOCAL, real addresses"},
    // PROXY with UNSPEC: take it, keep the real addresses
    {"B06",
     "0d0a0d0a000d0a515549540a21000000",
     "accept 16 of 16: PROXY UNSPEC, real addresses"},
    // PROXY with UNSPEC and 8 unknown bytes: skip them
    {"B07",
     "0d0a0d0a000d0a515549540a210000080000000000000000",
     "accept 24 of 24: PROXY UNSPEC, real addresses"},
    // UNSPEC protocol with INET family: keep the real addresses
    {"B08",
     "0d0a0d0a000d0a515549540a2110000cc0000201c0000202dc0401bb",
     "accept 28 of 28: PROXY UNSPEC, real addresses"},
    // TCP over IPv4
    {"B09",
     "0d0a0d0a000d0a515549540a2111000cc0000201c0000202dc0401bb",
     "accept 28 of 28: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443"},
    // payload stays in the stream
    {"B10",
     "0d0a0d0a000d0a515549540a2111000cc0000201c0000202dc0401bb48454c4c4f",
     "accept 28 of 33: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443"},
    // UDP over IPv4
    {"B11",
     "0d0a0d0a000d0a515549540a2112000cc0000201c0000202dc0401bb",
     "accept 28 of 28: IPv4 DGRAM 192.0.2.1:56324 -> 192.0.2.2:443"},
    // TCP over IPv6
    {"B12",
     "0d0a0d0a000d0a515549540a2121002420010db800000000000000000000000120010db800000000"
     "0000000000000002dc0401bb",
     "accept 52 of 52: IPv6 STREAM [2001:db8::1]:56324 -> [2001:db8::2]:443"},
    // UDP over IPv6
    {"B13",
     "0d0a0d0a000d0a515549540a2122002420010db800000000000000000000000120010db800000000"
     "0000000000000002dc0401bb",
     "accept 52 of 52: IPv6 DGRAM [2001:db8::1]:56324 -> [2001:db8::2]:443"},
    // IPv4-mapped addresses in an IPv6 block are legal
    {"B14",
     "0d0a0d0a000d0a515549540a2121002400000000000000000000ffffc00002010000000000000000"
     "0000ffffc0000202dc0401bb",
     "accept 52 of 52: IPv6 STREAM [::ffff:192.0.2.1]:56324 -> [::ffff:192.0.2.2]:443"},
    // UNIX stream, 232 bytes
    {"B15",
     "0d0a0d0a000d0a515549540a213100d82f72756e2f612e736f636b00000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "000000002f72756e2f622e736f636b00000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000000000000000",
     "accept 232 of 232: UNIX STREAM \"/run/a.sock\" -> \"/run/b.sock\""},
    // UNIX datagram: abstract name, and a 108-byte path with no NUL
    {"B16",
     "0d0a0d0a000d0a515549540a213200d8006162730000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000787878787878787878787878787878787878787878787878787878787878787878787878"
     "78787878787878787878787878787878787878787878787878787878787878787878787878787878"
     "7878787878787878787878787878787878787878787878787878787878787878",
     "accept 232 of 232: UNIX DGRAM abstract \"abs\" -> 108 bytes of \"x\", no NUL"},
    // 11 bytes for an IPv4 block
    {"B17",
     "0d0a0d0a000d0a515549540a2111000bc0000201c0000202dc0401",
     "reject: v2_short"},
    // no address bytes at all
    {"B18",
     "0d0a0d0a000d0a515549540a21120000",
     "reject: v2_short"},
    // 12 bytes for an IPv6 block
    {"B19",
     "0d0a0d0a000d0a515549540a2121000cc0000201c0000202dc0401bb",
     "reject: v2_short"},
    // 215 bytes for a UNIX block
    {"B20",
     "0d0a0d0a000d0a515549540a213100d7000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000000000000000000",
     "reject: v2_short"},
    // version 1 nibble
    {"B21",
     "0d0a0d0a000d0a515549540a1111000cc0000201c0000202dc0401bb",
     "reject: v2_version"},
    // version 3 nibble
    {"B22",
     "0d0a0d0a000d0a515549540a3111000cc0000201c0000202dc0401bb",
     "reject: v2_version"},
    // command 2
    {"B23",
     "0d0a0d0a000d0a515549540a2211000cc0000201c0000202dc0401bb",
     "reject: v2_command"},
    // command 15
    {"B24",
     "0d0a0d0a000d0a515549540a2f11000cc0000201c0000202dc0401bb",
     "reject: v2_command"},
    // family 4
    {"B25",
     "0d0a0d0a000d0a515549540a2141000cc0000201c0000202dc0401bb",
     "reject: v2_family"},
    // protocol 3
    {"B26",
     "0d0a0d0a000d0a515549540a2113000cc0000201c0000202dc0401bb",
     "reject: v2_family"},
    // last signature byte wrong
    {"B27",
     "0d0a0d0a000d0a515549540b2111000cc0000201c0000202dc0401bb",
     "reject: not_proxy"},
    // the NUL of the signature missing
    {"B28",
     "0d0a0d0a0d0a515549540a2111000cc0000201c0000202dc0401bb00",
     "reject: not_proxy"},
    // declared length above the receive cap
    {"B29",
     "0d0a0d0a000d0a515549540a2111ffffc0000201c0000202dc0401bb00000000",
     "reject: v2_too_big"},
    // ALPN and AUTHORITY
    {"B30",
     "0d0a0d0a000d0a515549540a21110020c0000201c0000202dc0401bb010002683202000c6578616d"
     "706c652e74657374",
     "accept 48 of 48: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 01(2), 02(12)"},
    // UNIQUE_ID of exactly 128 bytes
    {"B31",
     "0d0a0d0a000d0a515549540a2111008fc0000201c0000202dc0401bb050080000102030405060708"
     "090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f30"
     "3132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758"
     "595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f",
     "accept 159 of 159: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 05(128)"},
    // UNIQUE_ID of 129 bytes
    {"B32",
     "0d0a0d0a000d0a515549540a21110090c0000201c0000202dc0401bb050081414141414141414141"
     "41414141414141414141414141414141414141414141414141414141414141414141414141414141"
     "41414141414141414141414141414141414141414141414141414141414141414141414141414141"
     "41414141414141414141414141414141414141414141414141414141414141414141414141414141",
     "reject: unique_id_length"},
    // zero-length TLVs are legal
    {"B33",
     "0d0a0d0a000d0a515549540a21110012c0000201c0000202dc0401bbe30000040000",
     "accept 34 of 34: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV E3(0)"},
    // NOOP skipped, unknown type passed through
    {"B34",
     "0d0a0d0a000d0a515549540a21110018c0000201c0000202dc0401bb040005000000000099000101",
     "accept 40 of 40: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 99(1)"},
    // a type twice: keep both in order
    {"B35",
     "0d0a0d0a000d0a515549540a21110014c0000201c0000202dc0401bb0200016102000162",
     "accept 36 of 36: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 02(1), 02(1)"},
    // bytes after the declared length look like a TLV but are payload (haproxy reg-test case 2)
    {"B36",
     "0d0a0d0a000d0a515549540a21110014c0000201c0000202dc0401bb020005313233343502000535"
     "34333231",
     "accept 36 of 44: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 02(5)"},
    // TLV runs past the header
    {"B37",
     "0d0a0d0a000d0a515549540a21110014c0000201c0000202dc0401bb02000a3132333435",
     "reject: tlv_truncated"},
    // one stray byte at the end
    {"B38",
     "0d0a0d0a000d0a515549540a21110014c0000201c0000202dc0401bb0200043132333402",
     "reject: tlv_truncated"},
    // two stray bytes at the end
    {"B39",
     "0d0a0d0a000d0a515549540a21110015c0000201c0000202dc0401bb020004313233340200",
     "reject: tlv_truncated"},
    // TLV of 65535 bytes claimed
    {"B40",
     "0d0a0d0a000d0a515549540a2111000fc0000201c0000202dc0401bbe1ffff",
     "reject: tlv_truncated"},
    // CRC only
    {"B41",
     "0d0a0d0a000d0a515549540a21110013c0000201c0000202dc0401bb030004d6c8c75f",
     "accept 35 of 35: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 03(4)"},
    // CRC covers the header only, not the payload
    {"B42",
     "0d0a0d0a000d0a515549540a21110013c0000201c0000202dc0401bb030004d6c8c75f7061796c6f"
     "6164",
     "accept 35 of 42: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 03(4)"},
    // CRC in the middle, bytes above 0x7F, NUL in a value
    {"B43",
     "0d0a0d0a000d0a515549540a2121004120010db800000000000000000000000120010db800000000"
     "0000000000000002dc0401bb02000c6578616d706c652e7465737403000444648e5ee40004fffe80"
     "00",
     "accept 81 of 81: IPv6 STREAM [2001:db8::1]:56324 -> [2001:db8::2]:443; TLV 02(12), "
     "03(4), E4(4)"},
    // NLB style: CRC, AWS VPC endpoint id, NOOP padding to 84
    {"B44",
     "0d0a0d0a000d0a515549540a21110054c0000201c0000202dc0401bb030004958fb5b2ea00170176"
     "7063652d303132333435363738396162636465663004002400000000000000000000000000000000"
     "0000000000000000000000000000000000000000",
     "accept 100 of 100: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 03(4), EA(23)"},
    // one bit wrong
    {"B45",
     "0d0a0d0a000d0a515549540a21110013c0000201c0000202dc0401bb030004d6c8c75e",
     "reject: crc_mismatch"},
    // right CRC stored little-endian
    {"B46",
     "0d0a0d0a000d0a515549540a21110013c0000201c0000202dc0401bb0300045fc7c8d6",
     "reject: crc_mismatch"},
    // CRC computed without the 4 zero bytes
    {"B47",
     "0d0a0d0a000d0a515549540a21110013c0000201c0000202dc0401bb0300040b25be5b",
     "reject: crc_mismatch"},
    // zlib CRC-32 in place of CRC-32C
    {"B48",
     "0d0a0d0a000d0a515549540a21110013c0000201c0000202dc0401bb0300048d15004a",
     "reject: crc_mismatch"},
    // CRC value of 3 bytes
    {"B49",
     "0d0a0d0a000d0a515549540a21110012c0000201c0000202dc0401bb030003000000",
     "reject: crc_length"},
    // two CRC TLVs
    {"B50",
     "0d0a0d0a000d0a515549540a2111001ac0000201c0000202dc0401bb0300042ebe6aa50300042ebe"
     "6aa5",
     "reject: crc_duplicate"},
    // Azure link id 0x01020304, little-endian
    {"B51",
     "0d0a0d0a000d0a515549540a21110014c0000201c0000202dc0401bbee00050104030201",
     "accept 36 of 36: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV EE(5)"},
    // GCP PSC connection id, big-endian
    {"B52",
     "0d0a0d0a000d0a515549540a21110017c0000201c0000202dc0401bbe000080102030405060708",
     "accept 39 of 39: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV E0(8)"},
    // SSL: client bit 0x01, verify 0, version
    {"B53",
     "0d0a0d0a000d0a515549540a2111001ec0000201c0000202dc0401bb20000f010000000021000754"
     "4c5376312e33",
     "accept 46 of 46: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 20(15)"},
    // SSL with certificate on this connection and in the session
    {"B54",
     "0d0a0d0a000d0a515549540a21110046c0000201c0000202dc0401bb200037070000000021000754"
     "4c5376312e3322000c6578616d706c652e74657374230016544c535f4145535f3132385f47434d5f"
     "534841323536",
     "accept 86 of 86: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 20(55)"},
    // SSL with no bit set, verify not zero
    {"B55",
     "0d0a0d0a000d0a515549540a21110014c0000201c0000202dc0401bb2000050000000001",
     "accept 36 of 36: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 20(5)"},
    // SSL value shorter than 5 bytes
    {"B56",
     "0d0a0d0a000d0a515549540a21110013c0000201c0000202dc0401bb20000400000000",
     "reject: ssl_truncated"},
    // SSL sub-TLV runs past its parent
    {"B57",
     "0d0a0d0a000d0a515549540a2111001ec0000201c0000202dc0401bb20000f010000000021000954"
     "4c5376312e33",
     "reject: ssl_truncated"},
    // SSL inside SSL: treat as an unknown sub-type, never recurse
    {"B58",
     "0d0a0d0a000d0a515549540a21110024c0000201c0000202dc0401bb200015010000000020000d00"
     "000000002000050000000000",
     "accept 52 of 52: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 20(21)"},
    // prefix of a valid header
    {"B59",
     "0d",
     "need more: at least 15"},
    // prefix of a valid header
    {"B60",
     "0d0a0d0a000d0a51554954",
     "need more: at least 5"},
    // prefix of a valid header
    {"B61",
     "0d0a0d0a000d0a515549540a",
     "need more: at least 4"},
    // prefix of a valid header
    {"B62",
     "0d0a0d0a000d0a515549540a211100",
     "need more: at least 1"},
    // fixed part only
    {"B63",
     "0d0a0d0a000d0a515549540a2111000c",
     "need more: at least 12"},
    // one byte missing
    {"B64",
     "0d0a0d0a000d0a515549540a2111000cc0000201c0000202dc0401",
     "need more: at least 1"},
    // last padding byte missing
    {"B65",
     "0d0a0d0a000d0a515549540a21110054c0000201c0000202dc0401bb030004958fb5b2ea00170176"
     "7063652d303132333435363738396162636465663004002400000000000000000000000000000000"
     "00000000000000000000000000000000000000",
     "need more: at least 1"},
};

#endif
