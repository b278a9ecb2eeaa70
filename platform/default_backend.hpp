// floor 7 · default_backend.hpp · which backend a server uses if it is not told
#ifndef NETIO_DEFAULT_BACKEND_HPP
#define NETIO_DEFAULT_BACKEND_HPP

#include "platform/contract.hpp"
#include "platform/epoll.hpp"
#include "platform/io_uring.hpp"
#include "platform/iocp.hpp"
#include "platform/kqueue.hpp"
#include "platform/poll.hpp"

#ifdef NETIO_BACKEND_HEADER
// The user's header defines `netio::user_backend`, which meets the contract.
#include NETIO_BACKEND_HEADER
#endif

NETIO_BEGIN

#if defined(NETIO_BACKEND_HEADER)
using default_backend = user_backend;
#elif NETIO_HAS_EPOLL
using default_backend = epoll;
#elif NETIO_HAS_KQUEUE
using default_backend = kqueue;
#elif NETIO_HAS_IOCP
using default_backend = iocp;
#elif NETIO_HAS_POLL
using default_backend = poll;
#elif NETIO_PLATFORM
#error "netio: no epoll, kqueue, poll or iocp here; set NETIO_PLATFORM 0 or NETIO_BACKEND_HEADER"
#else
struct no_backend;
using default_backend = no_backend;
#endif

NETIO_END

#endif
