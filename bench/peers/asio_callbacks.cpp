// g++ -std=c++20 -O2 -pthread -DASIO_STANDALONE bench/peers/asio_callbacks.cpp -o asio_callbacks
//
// asio with completion handlers, as its echo example has it: one context a worker, which is told
// that one thread runs it; each session owns its buffer.
#include "peer.hpp"

#include <asio.hpp>

#include <memory>
#include <thread>
#include <vector>

namespace {

using asio::ip::tcp;

class session : public std::enable_shared_from_this<session> {
public:
    explicit session(tcp::socket socket) : socket_{std::move(socket)} {}

    void read() {
        socket_.async_read_some(
            asio::buffer(buffer_),
            [self = shared_from_this()](const asio::error_code& failed, std::size_t got_bytes) {
                if (!failed) { self->write(got_bytes); }
            });
    }

private:
    void write(std::size_t got_bytes) {
        asio::async_write(socket_, asio::buffer(buffer_, got_bytes),
                          [self = shared_from_this()](const asio::error_code& failed,
                                                      std::size_t) {
                              if (!failed) { self->read(); }
                          });
    }

    tcp::socket socket_;
    char buffer_[peer::buffer_bytes];
};

struct worker {
    asio::io_context context{1};
    tcp::acceptor acceptor{context};

    void accept() {
        acceptor.async_accept([this](const asio::error_code& failed, tcp::socket socket) {
            if (!failed) {
                // not make_shared, which would write the whole buffer first
                std::shared_ptr<session>{new session{std::move(socket)}}->read();
            }
            accept();
        });
    }
};

}  // namespace

int main(int argument_count, char** arguments) {
    peer::options chosen = peer::parse(argument_count, arguments);
    std::vector<std::unique_ptr<worker>> all;
    for (std::size_t index = 0; index < chosen.workers; ++index) {
        const int listener = peer::listen_on(chosen.port, SOCK_NONBLOCK);
        chosen.port = peer::port_of(listener);
        all.push_back(std::make_unique<worker>());
        all.back()->acceptor.assign(tcp::v4(), listener);
        all.back()->accept();
    }
    peer::say_listening(chosen.port);
    for (std::size_t index = 1; index < all.size(); ++index) {
        std::thread{[self = all[index].get()] { self->context.run(); }}.detach();
    }
    all[0]->context.run();
}
