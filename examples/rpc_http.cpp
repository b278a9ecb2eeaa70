// c++ -std=c++20 -O2 -I. examples/rpc_http.cpp -o rpc_http
//
// The kernel behind HTTP/1.1, for peers that have nothing else: each POST is a session with one
// call.
//
//     rpc_http [--listen 127.0.0.1:7200] [--memory BYTES] [--drain-ms N]
//
//     curl --data-binary @call -H 'Content-Type: application/connect+active-infinity'
//         http://127.0.0.1:7200/active.rpc.v1.Agent/Call                          (one command)
//
// A body is a byte 0, the size of an envelope as four bytes, most significant first, and the
// envelope, there and back. What the kernel refuses is an answer as any other: 200 and an error
// envelope. What is no request of the RPC is 400 and the error rpc/wire; a call whose provider
// answers later is 504 and rpc/timeout, for nobody waits here. Connections are kept, requests may
// follow each other without a pause. SIGTERM drains, SIGINT stops.
#include "netio.hpp"

#include "examples/rpc_parts.hpp"

namespace {

namespace rpc = netio::rpc;

constexpr std::string_view call_path = "/active.rpc.v1.Agent/Call";
constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::size_t request_head_max = 8192;
constexpr std::size_t answer_head_max = 256;
constexpr std::size_t type_max = 64;
constexpr std::size_t prefix_bytes = 5;    // a zero and the size
constexpr std::size_t envelope_max = 4096;    // of an answer; requests have what the window allows

// ---- the head of a request

enum class status : unsigned {
    ok = 200,
    bad_request = 400,
    not_found = 404,
    method_not_allowed = 405,
    length_required = 411,
    content_too_large = 413,
    unsupported_type = 415,
    head_too_large = 431,
    not_implemented = 501,
    timeout = 504,
    version_not_supported = 505
};

const char* reason(status of) noexcept {
    switch (of) {
    case status::ok:
        return "OK";
    case status::bad_request:
        return "Bad Request";
    case status::not_found:
        return "Not Found";
    case status::method_not_allowed:
        return "Method Not Allowed";
    case status::length_required:
        return "Length Required";
    case status::content_too_large:
        return "Content Too Large";
    case status::unsupported_type:
        return "Unsupported Media Type";
    case status::head_too_large:
        return "Request Header Fields Too Large";
    case status::not_implemented:
        return "Not Implemented";
    case status::timeout:
        return "Gateway Timeout";
    case status::version_not_supported:
        return "HTTP Version Not Supported";
    }
    return "";
}

/// A head that is HTTP, as far as it matters here; views into it.
struct request {
    std::string_view method;
    std::string_view target;
    std::string_view type;    // without parameters
    std::uint64_t body_bytes = 0;
    char version = '0';    // HTTP/1.1 is 1 and 1
    char revision = '0';
    bool has_host = false;
    bool has_type = false;
    bool has_length = false;
    bool is_coded = false;    // Transfer-Encoding
    bool closes = false;
    bool waits = false;    // for 100 Continue
};

std::string_view piece(std::string_view of, std::size_t first, std::size_t count) noexcept {
    return {of.data() + first, count};
}

bool is_digit(char of) noexcept { return of >= '0' && of <= '9'; }

char lower(char of) noexcept { return of >= 'A' && of <= 'Z' ? static_cast<char>(of + 32) : of; }

/// `word` is in lower case.
bool is_word(std::string_view text, std::string_view word) noexcept {
    bool same = text.size() == word.size();
    for (std::size_t at = 0; same && at < word.size(); ++at) {
        same = lower(text[at]) == word[at];
    }
    return same;
}

/// A name as HTTP knows it.
bool is_token(std::string_view text) noexcept {
    constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
    bool good = !text.empty();
    for (const char each : text) {
        const char small = lower(each);
        good = good && (is_digit(each) || (small >= 'a' && small <= 'z') ||
                        marks.find(each) != std::string_view::npos);
    }
    return good;
}

std::string_view trimmed(std::string_view text) noexcept {
    const auto is_blank = [](char of) { return of == ' ' || of == '\t'; };
    while (!text.empty() && is_blank(text.front())) {
        text.remove_prefix(1);
    }
    while (!text.empty() && is_blank(text.back())) {
        text.remove_suffix(1);
    }
    return text;
}

/// What stands before the first `mark`, or all; `text` is what follows it.
std::string_view take_until(std::string_view& text, char mark) noexcept {
    const std::size_t found = text.find(mark);
    const std::size_t end = found < text.size() ? found : text.size();
    const std::string_view out = piece(text, 0, end);
    text.remove_prefix(end < text.size() ? end + 1 : end);
    return out;
}

bool take_request_line(std::string_view line, request& out) noexcept {
    out.method = take_until(line, ' ');
    out.target = take_until(line, ' ');
    const bool named = line.size() == 8 && line.starts_with("HTTP/") && is_digit(line[5]) &&
                       line[6] == '.' && is_digit(line[7]);
    if (!named || !is_token(out.method) || out.target.empty() ||
        out.target.find('\t') != std::string_view::npos) {
        return false;
    }
    out.version = line[5];
    out.revision = line[7];
    return true;
}

/// Twice the same is once; two different ones would let two readers see two different requests.
bool take_length(std::string_view text, request& out) noexcept {
    constexpr std::uint64_t most = 1u << 31;    // more than any window
    std::uint64_t count = 0;
    bool good = !text.empty();
    for (const char each : text) {
        good = good && is_digit(each);
        count = count >= most ? most : count * 10 + static_cast<std::uint64_t>(each - '0');
    }
    good = good && (!out.has_length || out.body_bytes == count);
    out.has_length = true;
    out.body_bytes = count;
    return good;
}

/// False: it is none, or there may be only one of its name.
bool take_field(std::string_view line, request& out) noexcept {
    const bool has_colon = line.find(':') != std::string_view::npos;
    const std::string_view name = take_until(line, ':');
    std::string_view value = trimmed(line);
    if (!has_colon || !is_token(name)) {
        return false;
    }
    if (is_word(name, "host")) {
        const bool is_first = !out.has_host;
        out.has_host = true;
        return is_first;
    }
    if (is_word(name, "content-type")) {
        const bool is_first = !out.has_type;
        out.has_type = true;
        out.type = trimmed(take_until(value, ';'));
        return is_first;
    }
    if (is_word(name, "content-length")) {
        return take_length(value, out);
    }
    if (is_word(name, "transfer-encoding")) {
        out.is_coded = true;
    } else if (is_word(name, "expect")) {
        out.waits = is_word(value, "100-continue");
    } else if (is_word(name, "connection")) {
        while (!value.empty()) {
            out.closes = is_word(trimmed(take_until(value, ',')), "close") || out.closes;
        }
    }
    return true;
}

/// Bytes up to the empty line, which `find_head` has looked at.
status parse(std::string_view head, request& out) noexcept {
    const auto take_line = [&head] {
        const std::string_view line = take_until(head, '\r');
        head.remove_prefix(1);
        return line;
    };
    if (!take_request_line(take_line(), out)) {
        return status::bad_request;
    }
    if (out.version != '1') {
        return status::version_not_supported;
    }
    for (std::string_view line = take_line(); !line.empty(); line = take_line()) {
        if (!take_field(line, out)) {
            return status::bad_request;
        }
    }
    const bool is_old = out.revision == '0';    // such a client hangs up, and knows no 100
    out.closes = out.closes || is_old;
    out.waits = out.waits && !is_old;
    return out.has_host || is_old ? status::ok : status::bad_request;
}

bool is_spoken(std::string_view type) noexcept {
    constexpr std::string_view grpc = "application/grpc";
    if (is_word(type, "application/connect+active-infinity") || is_word(type, grpc)) {
        return true;
    }
    if (type.size() <= grpc.size() || type.size() > type_max || type[grpc.size()] != '+') {
        return false;
    }
    std::string_view kind = type;
    kind.remove_prefix(grpc.size() + 1);
    return is_word(piece(type, 0, grpc.size()), grpc) && is_token(kind);
}

/// May it be a call, with a body of so many bytes at most?
status judge(const request& asked, std::size_t body_max) noexcept {
    if (asked.target != call_path) {
        return status::not_found;
    }
    if (asked.method != "POST") {
        return status::method_not_allowed;
    }
    if (asked.is_coded) {
        return status::not_implemented;
    }
    if (!is_spoken(asked.type)) {
        return status::unsupported_type;
    }
    if (!asked.has_length) {
        return status::length_required;
    }
    return asked.body_bytes <= body_max ? status::ok : status::content_too_large;
}

/// A connection's own: what is known of the request in front, so that no byte is looked at again
/// each time that more come.
struct progress {
    std::uint32_t scanned;    // bytes without the end of the head
    std::uint32_t head;       // its bytes, once its end is there
    std::uint32_t whole;      // and those of its body
};

/// ok, and `known.head` if it is all there.
status find_head(std::string_view in, progress& known) noexcept {
    const std::size_t end = in.size() < request_head_max ? in.size() : request_head_max;
    for (std::size_t at = known.scanned; at < end; ++at) {
        const char now = in[at];
        const bool ends_line = at != 0 && in[at - 1] == '\r';
        const bool is_control = (static_cast<unsigned char>(now) < 0x20 && now != '\t' &&
                                 now != '\r' && now != '\n') || now == 0x7f;
        if (is_control || ends_line != (now == '\n')) {
            return status::bad_request;
        }
        if (ends_line && at >= 2 && in[at - 2] == '\n') {
            known.head = static_cast<std::uint32_t>(at + 1);
            return status::ok;
        }
    }
    known.scanned = static_cast<std::uint32_t>(end);
    return end == request_head_max ? status::head_too_large : status::ok;
}

// ---- a call

/// One envelope in, one out.
class post_link {
public:
    post_link(netio::bytes asked, netio::mutable_bytes room) noexcept
        : asked_(asked), room_(room) {}

    std::uint32_t record_max() const noexcept { return static_cast<std::uint32_t>(room_.size()); }
    netio::ring_claim claim(std::uint32_t count) noexcept {
        const bool fits = count != 0 && count <= record_max() && answered_ == 0;
        return fits ? netio::ring_claim{room_.first(count), 0} : netio::ring_claim{};
    }
    void commit(const netio::ring_claim&, std::uint32_t count) noexcept { answered_ = count; }
    static void abandon(const netio::ring_claim&) noexcept {}
    static void flush() noexcept {}
    netio::bytes peek() noexcept { return asked_; }
    void release() noexcept { asked_ = {}; }
    static netio::error why() noexcept { return netio::error::none; }

    netio::bytes answer() const noexcept { return room_.first(answered_); }

private:
    netio::bytes asked_;
    netio::mutable_bytes room_;
    std::uint32_t answered_ = 0;
};
static_assert(rpc::link<post_link>);

std::uint32_t load_big(netio::bytes at) noexcept {
    std::uint32_t out = 0;
    for (const std::byte each : at.first(4)) {
        out = out << 8 | std::to_integer<std::uint32_t>(each);
    }
    return out;
}

void store_big(std::uint32_t number, std::byte* at) noexcept {
    for (std::uint32_t shift = 32; shift != 0; shift -= 8) {
        *at++ = static_cast<std::byte>(number >> (shift - 8) & 0xFF);
    }
}

/// The envelope in a body; empty if it is none. A first byte of 1 would be compression.
netio::bytes envelope_in(netio::bytes body) noexcept {
    if (body.size() < prefix_bytes || body[0] != std::byte{0} ||
        load_big(body.subspan(1)) != body.size() - prefix_bytes) {
        return {};
    }
    return body.subspan(prefix_bytes);
}

class bridge {
public:
    explicit bridge(example::calculating& of) noexcept
        : of_(of), session_(of.kernel(), memory_, {.calls_max = 1}) {}

    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept;

private:
    static constexpr std::size_t answer_max = answer_head_max + prefix_bytes + envelope_max;

    std::size_t take_one(netio::connection& peer, std::string_view in) noexcept;
    void say(netio::connection& peer, status what, std::string_view type, bool closes,
             netio::bytes body) noexcept;
    status call(post_link& link, netio::bytes asked) noexcept;

    example::calculating& of_;
    alignas(8) std::byte memory_[rpc::callee_bytes_needed(1)] = {};
    rpc::callee session_;
    std::byte room_[prefix_bytes + envelope_max] = {};
};

std::size_t bridge::on_data(netio::connection& peer, netio::bytes in) noexcept {
    std::string_view left = netio::as_text(in);
    while (!left.empty()) {
        if (!peer.has_room(answer_max)) {    // until the peer has read some of what it asked for
            peer.phase(netio::phase::answer);
            return in.size() - left.size();
        }
        const std::size_t used = take_one(peer, left);
        if (used == 0) {
            peer.phase(netio::phase::exchange);
            break;
        }
        left.remove_prefix(used);
        peer.state<progress>() = {};
        peer.phase(netio::phase::idle);
    }
    return in.size() - left.size();
}

/// Answers the request in front, for which there is room; how many bytes it had, or 0 if it is not
/// all there. Of a request that is refused by its head nobody reads the body, so the connection
/// ends with that answer.
std::size_t bridge::take_one(netio::connection& peer, std::string_view in) noexcept {
    progress& known = peer.state<progress>();
    if (in.starts_with("\r\n")) {    // some clients send one behind a body
        return 2;
    }
    if (in.size() < known.whole) {
        return 0;
    }
    request asked;
    status what = known.head == 0 ? find_head(in, known) : status::ok;
    if (what == status::ok && known.head == 0) {
        return 0;
    }
    if (what == status::ok) {
        what = parse(piece(in, 0, known.head), asked);
    }
    if (what == status::ok) {
        what = judge(asked, peer.input_max() - known.head);
    }
    if (what != status::ok) {
        say(peer, what, {}, true, {});
        return in.size();
    }
    const std::size_t whole = known.head + static_cast<std::size_t>(asked.body_bytes);
    if (in.size() < whole) {
        if (known.whole == 0 && asked.waits) {
            peer.write(go_on);
        }
        known.whole = static_cast<std::uint32_t>(whole);
        return 0;
    }
    peer.phase(netio::phase::answer);    // before its first byte, which a gate asks about
    const std::string_view body = piece(in, known.head, whole - known.head);
    const netio::bytes envelope = envelope_in(netio::as_bytes(body));
    post_link link(envelope, netio::mutable_bytes(room_).subspan(prefix_bytes));
    what = call(link, envelope);
    say(peer, what, asked.type, asked.closes, link.answer());
    return asked.closes ? in.size() : whole;
}

/// A session of its own: opened, asked once, closed. Leaves an answer in the link.
status bridge::call(post_link& link, netio::bytes asked) noexcept {
    const auto refuse = [&](rpc::rpc_code code) {
        if (const netio::ring_claim room = link.claim(envelope_max); room) {
            const rpc::envelope in = rpc::decode(asked, rpc::wire_limits::strict()).value;
            link.commit(room, static_cast<std::uint32_t>(rpc::encode_error(
                                  in.request_id, rpc::code_text(code), room.room)));
        }
    };
    if (const auto opened = session_.open(of_.root()); !opened) {
        refuse(opened.why);
        return status::ok;
    }
    session_.take(link, 1);
    status out = status::ok;
    if (session_.requests() == 0) {    // broken, and answered, or another kind of envelope
        refuse(rpc::rpc_code::wire);
        out = status::bad_request;
    } else if (link.answer().empty()) {
        of_.kernel().dispatch();
        if (session_.answer_settled(link) == 0) {
            refuse(rpc::rpc_code::timeout);
            out = status::timeout;
        }
    }
    session_.close();
    return out;
}

/// Without a type there is no body. An answer lies in the room, behind the place of its prefix.
void bridge::say(netio::connection& peer, status what, std::string_view type, bool closes,
                 netio::bytes answer) noexcept {
    const std::size_t body_bytes = type.empty() ? 0 : prefix_bytes + answer.size();
    char head[answer_head_max];
    const int count = std::snprintf(
        head, sizeof(head), "HTTP/1.1 %u %s\r\n%s%.*s%s%sContent-Length: %zu\r\n%s\r\n",
        static_cast<unsigned>(what), reason(what), type.empty() ? "" : "Content-Type: ",
        example::length(type), type.data(), type.empty() ? "" : "\r\n",
        what == status::method_not_allowed ? "Allow: POST\r\n" : "", body_bytes,
        closes ? "Connection: close\r\n" : "");
    peer.write({head, static_cast<std::size_t>(count)});
    if (body_bytes != 0) {
        store_big(static_cast<std::uint32_t>(answer.size()), room_ + 1);
        peer.write(netio::bytes(room_, body_bytes));
        netio::wipe(room_, body_bytes);
    }
    if (closes) {
        peer.close();
    }
}

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::loopback_ipv4(7200);
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--memory", .number = &memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("rpc_http", count, words, settings)) {
        return 2;
    }
    example::calculating calculates;
    bridge handler(calculates);
    netio::server<bridge> server{example::memory_for({}, memory_bytes), handler};
    return example::serve("rpc_http", server, at, drain_ms);
}
