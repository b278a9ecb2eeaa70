// floor 9 · netio.hpp · the umbrella: the parts in reading order
#ifndef NETIO_UMBRELLA_HPP
#define NETIO_UMBRELLA_HPP

#include "src/base.hpp"
#include "src/error.hpp"
#include "platform/crc32c_machine.hpp"
#include "src/bytes.hpp"
#include "src/endpoint.hpp"
#include "src/limits.hpp"
#include "src/crc32c.hpp"
#include "src/stats.hpp"
#include "src/slab.hpp"
#include "src/wheel.hpp"
#include "src/buffer_pool.hpp"
#include "src/post_queue.hpp"
#include "src/proxy.hpp"
#include "src/envelope.hpp"
#include "src/options.hpp"
#include "platform/contract.hpp"
#include "src/output_queue.hpp"
#include "src/connection.hpp"
#include "src/datagram.hpp"
#include "platform/socket_posix.hpp"
#include "platform/epoll.hpp"
#include "src/events.hpp"
#include "src/hooks.hpp"
#include "src/worker.hpp"
#include "platform/default_backend.hpp"
#include "src/reactor.hpp"
#include "src/server.hpp"
#include "src/proxy.hpp"

#endif
