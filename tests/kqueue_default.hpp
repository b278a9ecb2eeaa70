// NETIO_BACKEND_HEADER of programs that are to run on kqueue where it is not the default.
#ifndef NETIO_TESTS_KQUEUE_DEFAULT_HPP
#define NETIO_TESTS_KQUEUE_DEFAULT_HPP

NETIO_BEGIN

using user_backend = kqueue;

NETIO_END

#endif
