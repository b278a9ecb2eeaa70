// g++ -std=c++20 -O2 -pthread bench/peers/libevent_echo.cpp -o libevent_echo -levent_core
//
// libevent at its best at this job: one base a worker, its events over the sockets themselves and
// the reply sent at once. (Bufferevents ask FIONREAD before they read and copy twice.)
#include "peer.hpp"

#include <event2/event.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace {

struct worker {
    event_base* base = nullptr;
    char buffer[peer::buffer_bytes];
};

struct session {
    worker* owner = nullptr;
    event* readable = nullptr;
    event* writable = nullptr;  // made when the kernel first refuses bytes
    std::vector<char> rest;
    std::size_t rest_sent = 0;
};

void drop(session* self) {
    const evutil_socket_t descriptor = event_get_fd(self->readable);
    event_free(self->readable);
    if (self->writable != nullptr) { event_free(self->writable); }
    ::close(descriptor);
    delete self;
}

void on_writable(evutil_socket_t descriptor, short, void* argument) {
    auto* self = static_cast<session*>(argument);
    const ssize_t sent = ::send(descriptor, self->rest.data() + self->rest_sent,
                                self->rest.size() - self->rest_sent, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN) { drop(self); }
        return;
    }
    self->rest_sent += static_cast<std::size_t>(sent);
    if (self->rest_sent == self->rest.size()) {
        event_del(self->writable);
        event_add(self->readable, nullptr);
    }
}

void keep_rest(session* self, evutil_socket_t descriptor, const char* rest, std::size_t count) {
    self->rest.assign(rest, rest + count);
    self->rest_sent = 0;
    if (self->writable == nullptr) {
        self->writable = event_new(self->owner->base, descriptor,
                                   static_cast<short>(EV_WRITE | EV_PERSIST), on_writable, self);
    }
    event_del(self->readable);
    event_add(self->writable, nullptr);
}

void on_readable(evutil_socket_t descriptor, short, void* argument) {
    auto* self = static_cast<session*>(argument);
    char* buffer = self->owner->buffer;
    const ssize_t got = ::recv(descriptor, buffer, peer::buffer_bytes, 0);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) { drop(self); }
        return;
    }
    const ssize_t sent =
        ::send(descriptor, buffer, static_cast<std::size_t>(got), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        drop(self);
    } else if (sent < got) {
        const std::size_t sent_bytes = sent < 0 ? 0 : static_cast<std::size_t>(sent);
        keep_rest(self, descriptor, buffer + sent_bytes,
                  static_cast<std::size_t>(got) - sent_bytes);
    }
}

void on_connection(evutil_socket_t listener, short, void* argument) {
    auto* owner = static_cast<worker*>(argument);
    for (;;) {
        const int descriptor =
            ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor < 0) { return; }
        auto* self = new session;
        self->owner = owner;
        self->readable = event_new(owner->base, descriptor,
                                   static_cast<short>(EV_READ | EV_PERSIST), on_readable, self);
        if (self->readable == nullptr) { peer::die("event_new"); }
        event_add(self->readable, nullptr);
    }
}

void open_worker(worker& self, int listener) {
    event_config* config = event_config_new();
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    self.base = event_base_new_with_config(config);
    if (self.base == nullptr) { peer::die("event_base_new"); }
    event_config_free(config);
    event_add(event_new(self.base, listener, static_cast<short>(EV_READ | EV_PERSIST),
                        on_connection, &self),
              nullptr);
}

}  // namespace

int main(int argument_count, char** arguments) {
    peer::options chosen = peer::parse(argument_count, arguments);
    std::vector<worker*> all;
    for (std::size_t index = 0; index < chosen.workers; ++index) {
        const int listener = peer::listen_on(chosen.port, SOCK_NONBLOCK);
        chosen.port = peer::port_of(listener);
        all.push_back(new worker);
        open_worker(*all.back(), listener);
    }
    peer::say_listening(chosen.port);
    for (std::size_t index = 1; index < all.size(); ++index) {
        std::thread{[self = all[index]] { event_base_dispatch(self->base); }}.detach();
    }
    return event_base_dispatch(all[0]->base);
}
