// g++ -std=c++20 -O2 -pthread bench/peers/thread_echo.cpp -o thread_echo
//
// A blocking thread per connection: one receive and one send a round trip, and no wait. The
// scheduler is its loop. --workers is the number of threads that accept.
#include "peer.hpp"

#include <pthread.h>
#include <unistd.h>

#include <thread>

namespace {

constexpr std::size_t stack_bytes = 64 * 1024;

void* serve(void* argument) {
    const int descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(argument));
    char buffer[peer::buffer_bytes];
    for (;;) {
        const ssize_t got = ::recv(descriptor, buffer, sizeof buffer, 0);
        if (got <= 0) { break; }
        std::size_t sent_bytes = 0;
        while (sent_bytes < static_cast<std::size_t>(got)) {
            const ssize_t sent =
                ::send(descriptor, buffer + sent_bytes,
                       static_cast<std::size_t>(got) - sent_bytes, MSG_NOSIGNAL);
            if (sent < 0) { break; }
            sent_bytes += static_cast<std::size_t>(sent);
        }
        if (sent_bytes < static_cast<std::size_t>(got)) { break; }
    }
    ::close(descriptor);
    return nullptr;
}

void accept_all(int listener) {
    pthread_attr_t detached;
    ::pthread_attr_init(&detached);
    ::pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    ::pthread_attr_setstacksize(&detached, stack_bytes);
    for (;;) {
        const int descriptor = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (descriptor < 0) {
            if (errno == EINTR || errno == ECONNABORTED) { continue; }
            peer::die("accept4");
        }
        pthread_t made{};
        auto* argument = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
        if (::pthread_create(&made, &detached, serve, argument) != 0) { ::close(descriptor); }
    }
}

}  // namespace

int main(int argument_count, char** arguments) {
    peer::options chosen = peer::parse(argument_count, arguments);
    const int first = peer::listen_on(chosen.port, 0);
    chosen.port = peer::port_of(first);
    for (std::size_t index = 1; index < chosen.workers; ++index) {
        std::thread{accept_all, peer::listen_on(chosen.port, 0)}.detach();
    }
    peer::say_listening(chosen.port);
    accept_all(first);
}
