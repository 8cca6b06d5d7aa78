/* far_notes.c - what befell links between nodes and is no error: kept for the program's log. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "far_inside.h"

/* One writer, the driver; one reader, whoever holds the communicator: both under the lock, which neither holds for long. */
void rr_far_note(struct rr_far *far, const char *format, ...)
{
	va_list arguments;

	pthread_mutex_lock(&far->notes_lock);
	if (far->notes_written - far->notes_read == RR_FAR_NOTES_MAX)
		far->notes_read++; /* the newest are of use */
	va_start(arguments, format);
	vsnprintf(far->notes[far->notes_written % RR_FAR_NOTES_MAX], RR_FAR_NOTE_BYTES, format, arguments);
	va_end(arguments);
	far->notes_written++;
	pthread_mutex_unlock(&far->notes_lock);
}

bool rr_far_take_note(struct rr_far *far, char *text, size_t size)
{
	bool found;

	pthread_mutex_lock(&far->notes_lock);
	found = far->notes_read != far->notes_written;
	if (found)
		snprintf(text, size, "%s", far->notes[far->notes_read++ % RR_FAR_NOTES_MAX]);
	pthread_mutex_unlock(&far->notes_lock);
	return found;
}

const struct rr_rail *rr_far_rails(const struct rr_far *far, int32_t rank, uint32_t *count)
{
	*count = far->hellos ? far->hellos[rank].rail_count : 0;
	return far->hellos ? far->hellos[rank].rails : NULL;
}
