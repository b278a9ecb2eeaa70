// g++ -std=c++20 -O2 -pthread -DASIO_STANDALONE bench/peers/asio_coroutines.cpp -o asio_coroutines
//
// asio with coroutines: one context a worker, one coroutine a connection with its buffer in the
// frame. Errors are values: an exception for each connection that ends would be measured too.
#include "peer.hpp"

#include <asio.hpp>

#include <memory>
#include <thread>
#include <vector>

namespace {

using asio::ip::tcp;

asio::awaitable<void> echo(tcp::socket socket) {
    char buffer[peer::buffer_bytes];
    asio::error_code failed;
    const auto token = [&failed] {
        return asio::redirect_error(asio::use_awaitable, failed);
    };
    for (;;) {
        const std::size_t got_bytes =
            co_await socket.async_read_some(asio::buffer(buffer), token());
        if (failed) { co_return; }
        co_await asio::async_write(socket, asio::buffer(buffer, got_bytes), token());
        if (failed) { co_return; }
    }
}

asio::awaitable<void> accept(tcp::acceptor& acceptor) {
    for (;;) {
        asio::error_code failed;
        tcp::socket socket =
            co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, failed));
        if (!failed) {
            asio::co_spawn(acceptor.get_executor(), echo(std::move(socket)), asio::detached);
        }
    }
}

struct worker {
    asio::io_context context{1};
    tcp::acceptor acceptor{context};
};

}  // namespace

int main(int argument_count, char** arguments) {
    peer::options chosen = peer::parse(argument_count, arguments);
    std::vector<std::unique_ptr<worker>> all;
    for (std::size_t index = 0; index < chosen.workers; ++index) {
        const int listener = peer::listen_on(chosen.port, SOCK_NONBLOCK);
        chosen.port = peer::port_of(listener);
        all.push_back(std::make_unique<worker>());
        worker& self = *all.back();
        self.acceptor.assign(tcp::v4(), listener);
        asio::co_spawn(self.context, accept(self.acceptor), asio::detached);
    }
    peer::say_listening(chosen.port);
    for (std::size_t index = 1; index < all.size(); ++index) {
        std::thread{[self = all[index].get()] { self->context.run(); }}.detach();
    }
    all[0]->context.run();
}
