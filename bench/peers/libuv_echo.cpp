// g++ -std=c++20 -O2 -pthread bench/peers/libuv_echo.cpp -o libuv_echo -luv
//
// libuv at its best at the same job and with the same command line as floor_epoll: one loop a
// worker, one read buffer a loop, the reply tried at once and only the rest queued.
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <uv.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

struct worker {
    uv_loop_t loop;
    uv_tcp_t listener;
    char buffer[64 * 1024];  // the size libuv suggests to its users
};

struct pending_write {
    uv_write_t request;
    std::vector<char> bytes;
};

void check(int status, const char* what) {
    if (status < 0) {
        std::fprintf(stderr, "libuv_echo: %s: %s\n", what, uv_strerror(status));
        std::exit(1);
    }
}

void on_closed(uv_handle_t* handle) { std::free(handle); }

void close_peer(uv_stream_t* peer) {
    auto* handle = reinterpret_cast<uv_handle_t*>(peer);
    if (uv_is_closing(handle) == 0) { uv_close(handle, on_closed); }
}

void on_allocate(uv_handle_t* handle, std::size_t, uv_buf_t* into) {
    auto* self = static_cast<worker*>(handle->loop->data);
    *into = uv_buf_init(self->buffer, sizeof self->buffer);
}

void on_written(uv_write_t* request, int status) {
    auto* pending = reinterpret_cast<pending_write*>(request);
    if (status < 0) { close_peer(request->handle); }
    delete pending;
}

void write_rest(uv_stream_t* peer, const char* rest, std::size_t rest_bytes) {
    auto* pending = new pending_write;
    pending->bytes.assign(rest, rest + rest_bytes);
    uv_buf_t piece = uv_buf_init(pending->bytes.data(), static_cast<unsigned>(rest_bytes));
    if (uv_write(&pending->request, peer, &piece, 1, on_written) < 0) {
        delete pending;
        close_peer(peer);
    }
}

void on_read(uv_stream_t* peer, ssize_t got, const uv_buf_t* buffer) {
    if (got < 0) {
        close_peer(peer);
        return;
    }
    if (got == 0) { return; }
    uv_buf_t piece = uv_buf_init(buffer->base, static_cast<unsigned>(got));
    const int sent = uv_try_write(peer, &piece, 1);
    if (sent < 0 && sent != UV_EAGAIN) {
        close_peer(peer);
        return;
    }
    const std::size_t sent_bytes = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    if (sent_bytes < static_cast<std::size_t>(got)) {
        write_rest(peer, buffer->base + sent_bytes, static_cast<std::size_t>(got) - sent_bytes);
    }
}

void on_connection(uv_stream_t* listener, int status) {
    if (status < 0) { return; }
    auto* peer = static_cast<uv_tcp_t*>(std::malloc(sizeof(uv_tcp_t)));
    if (peer == nullptr) { std::abort(); }
    check(uv_tcp_init(listener->loop, peer), "uv_tcp_init");
    auto* stream = reinterpret_cast<uv_stream_t*>(peer);
    check(uv_accept(listener, stream), "uv_accept");
    check(uv_read_start(stream, on_allocate, on_read), "uv_read_start");
}

std::uint16_t open_worker(worker& self, std::uint16_t port) {
    check(uv_loop_init(&self.loop), "uv_loop_init");
    self.loop.data = &self;
    check(uv_tcp_init_ex(&self.loop, &self.listener, AF_INET), "uv_tcp_init_ex");
    uv_os_fd_t descriptor = -1;
    check(uv_fileno(reinterpret_cast<uv_handle_t*>(&self.listener), &descriptor), "uv_fileno");
    const int on = 1;
    ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // inherited by accept
    sockaddr_in address{};
    check(uv_ip4_addr("127.0.0.1", port, &address), "uv_ip4_addr");
    check(uv_tcp_bind(&self.listener, reinterpret_cast<sockaddr*>(&address), 0), "uv_tcp_bind");
    check(uv_listen(reinterpret_cast<uv_stream_t*>(&self.listener), 4096, on_connection),
          "uv_listen");
    int address_bytes = sizeof address;
    check(uv_tcp_getsockname(&self.listener, reinterpret_cast<sockaddr*>(&address),
                             &address_bytes), "uv_tcp_getsockname");
    return ntohs(address.sin_port);
}

long number_after(int& index, int argument_count, char** arguments, long most) {
    const char* flag = arguments[index];
    char* end = nullptr;
    ++index;
    const long value = index < argument_count ? std::strtol(arguments[index], &end, 10) : -1;
    if (end == nullptr || *end != '\0' || value < 0 || value > most) {
        std::fprintf(stderr, "libuv_echo: %s wants a number from 0 to %ld\n", flag, most);
        std::exit(2);
    }
    return value;
}

}  // namespace

int main(int argument_count, char** arguments) {
    long port = 0;
    long workers = 1;
    for (int index = 1; index < argument_count; ++index) {
        if (std::strcmp(arguments[index], "--port") == 0) {
            port = number_after(index, argument_count, arguments, 65535);
        } else if (std::strcmp(arguments[index], "--workers") == 0) {
            workers = number_after(index, argument_count, arguments, 256);
        } else {
            std::fprintf(stderr, "libuv_echo: unknown option %s; --port P --workers N\n",
                         arguments[index]);
            return 2;
        }
    }
    std::vector<worker*> all;
    for (long index = 0; index < (workers > 0 ? workers : 1); ++index) {
        all.push_back(new worker);
        port = open_worker(*all.back(), static_cast<std::uint16_t>(port));
    }
    std::printf("listening %ld\n", port);
    std::fflush(stdout);
    for (std::size_t index = 1; index < all.size(); ++index) {
        std::thread{[self = all[index]] { uv_run(&self->loop, UV_RUN_DEFAULT); }}.detach();
    }
    return uv_run(&all[0]->loop, UV_RUN_DEFAULT);
}
