/* message_load.c - a transport that is not ours, found and checked. */
#include <ctype.h>
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "link_message.h"
#include "status.h"

#define SYMBOL "rr_link_transport"
/* All that version 1 had; members that are appended later are asked for by `size`. */
#define SIZE_MIN (offsetof(rr_message_transport, close) + sizeof(void (*)(void)))

static bool good_name(const char *name)
{
	size_t length = name ? strnlen(name, RR_MESSAGE_NAME_BYTES) : 0;

	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i]))
			return false;
	return length > 0 && length < RR_MESSAGE_NAME_BYTES;
}

rr_status rr_message_check(const rr_message_transport *transport, const char *whose)
{
	if (transport->version != RR_MESSAGE_VERSION)
		return rr_fail(RR_ERR_SETUP, "%s is a transport of version %u; accepted is version %d (rdmaring_link.h)", whose,
			       transport->version, RR_MESSAGE_VERSION);
	if (transport->size < SIZE_MIN || transport->size > 4096)
		return rr_fail(RR_ERR_SETUP, "%s gives a table of %u bytes; accepted are sizeof(rr_message_transport), here %zu, or more",
			       whose, transport->size, SIZE_MIN);
	if (!transport->open || !transport->send || !transport->receive || !transport->close)
		return rr_fail(RR_ERR_SETUP, "%s gives a table without %s; open, send, receive and close may not be NULL", whose,
			       !transport->open ? "open" : !transport->send ? "send" : !transport->receive ? "receive" : "close");
	if (!good_name(transport->name))
		return rr_fail(RR_ERR_SETUP, "%s has the name '%.20s'; accepted are 1 to %d letters, digits, '-', '_' and '.'", whose,
			       transport->name ? transport->name : "", RR_MESSAGE_NAME_BYTES - 1);
	return RR_OK;
}

rr_status rr_message_load(const char *path, void **library, const rr_message_transport **out)
{
	const rr_message_transport *(*get)(void);
	const char *why;
	rr_status status;

	*library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!*library) {
		why = dlerror();
		return rr_fail(RR_ERR_SETUP, "%s; expected was a shared library that exports " SYMBOL "() (rdmaring_link.h)",
			       why ? why : path);
	}
	void *symbol = dlsym(*library, SYMBOL);
	if (!symbol) {
		rr_fail(RR_ERR_SETUP, "%s is no transport: it exports no " SYMBOL "() as rdmaring_link.h declares it", path);
		goto close_library;
	}
	memcpy(&get, &symbol, sizeof(get)); /* ISO C has no cast from data to code */
	*out = get();
	if (!*out) {
		rr_fail(RR_ERR_SETUP, "%s is no transport: " SYMBOL "() gives NULL", path);
		goto close_library;
	}
	status = rr_message_check(*out, path);
	if (status >= 0)
		return RR_OK;

close_library:
	dlclose(*library);
	*library = NULL;
	*out = NULL;
	return RR_ERR_SETUP;
}
