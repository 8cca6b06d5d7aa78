/*
 * capture.c - stream capture: operations become nodes of a graph instead of running.
 *
 * Each stream of a capture is a lane. What the next operation of a lane comes after is the lane's frontier; an
 * event recorded in a capture names one node, so a frontier of several is first joined by an empty node.
 */
#include "cs.h"

#include <stdlib.h>

#define FRONTIER_MAX 32

struct lane {
	struct CUstream_st *stream;
	uint32_t frontier[FRONTIER_MAX];
	uint32_t count;
};

struct cs_capture {
	struct CUgraph_st *graph;
	CUstreamCaptureMode mode;
	pthread_t thread;              /* that began it */
	unsigned long long id;
	bool invalid, ended;
	struct lane lanes[CS_LANES_MAX]; /* the first is that of the stream on which it began */
	uint32_t lane_count;
	struct cs_capture *next;
};

static struct cs_capture *captures; /* never freed: events may name them */
static unsigned long long last_id;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static CUresult invalidate(struct cs_capture *capture, CUresult why)
{
	capture->invalid = true;
	return why;
}

/* A node after the lane's frontier becomes the frontier. Owns op (NULL: empty node). */
static CUresult append(struct cs_capture *capture, struct lane *lane, struct cs_op *op)
{
	uint32_t index = lane - capture->lanes, node;
	CUresult result = cs_graph_add(capture->graph, index, op, lane->frontier, lane->count, &node);

	if (result != CUDA_SUCCESS)
		return invalidate(capture, result);
	lane->frontier[0] = node;
	lane->count = 1;
	return CUDA_SUCCESS;
}

static CUresult extend(struct cs_capture *capture, struct lane *lane, uint32_t node)
{
	CUresult result = lane->count == FRONTIER_MAX ? append(capture, lane, NULL) : CUDA_SUCCESS;

	if (result == CUDA_SUCCESS)
		lane->frontier[lane->count++] = node;
	return result;
}

bool cs_stream_captures(CUstream handle)
{
	struct CUstream_st *stream;

	pthread_mutex_lock(&cs_lock);
	stream = cs_stream_of(handle);
	pthread_mutex_unlock(&cs_lock);
	return stream && stream->capture;
}

CUresult cs_capture_add(struct CUstream_st *stream, struct cs_op *op)
{
	struct cs_capture *capture = stream->capture;

	if (!capture->invalid)
		return append(capture, &capture->lanes[stream->lane], op);
	free(op);
	return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cs_capture_record(struct CUstream_st *stream, struct CUevent_st *event)
{
	struct cs_capture *capture = stream->capture;
	struct lane *lane = &capture->lanes[stream->lane];

	if (capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (event->imported || event->fd >= 0)
		return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (lane->count != 1 && append(capture, lane, NULL) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->captured = capture;
	event->captured_node = lane->frontier[0];
	return CUDA_SUCCESS;
}

CUresult cs_capture_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
	struct cs_capture *capture = event->captured;
	struct lane *lane;

	if (stream->capture && stream->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!capture) /* an event from outside */
		return invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	if (capture->ended)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (stream->capture == capture)
		return extend(capture, &capture->lanes[stream->lane], event->captured_node);
	if (stream->capture)
		return invalidate(capture, invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE));
	if (capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream == stream->context->legacy)
		return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (capture->lane_count == CS_LANES_MAX)
		return invalidate(capture, CUDA_ERROR_OUT_OF_MEMORY);
	stream->capture = capture;
	stream->lane = capture->lane_count++;
	lane = &capture->lanes[stream->lane];
	lane->stream = stream;
	return extend(capture, lane, event->captured_node);
}

CUresult cs_capture_forbids_legacy(const struct CUctx_st *context)
{
	for (struct cs_capture *capture = captures; capture; capture = capture->next)
		for (uint32_t i = 0; !capture->ended && i < capture->lane_count; i++)
			if (capture->lanes[i].stream->context == context &&
			    !(capture->lanes[i].stream->flags & CU_STREAM_NON_BLOCKING))
				return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return CUDA_SUCCESS;
}

CUresult cs_capture_forbids(void)
{
	CUresult result = CUDA_SUCCESS;

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&cs_lock);
	for (struct cs_capture *capture = captures; capture; capture = capture->next) {
		bool own = pthread_equal(capture->thread, pthread_self());

		if (capture->ended || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
			continue;
		if (own || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL))
			result = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CUresult cs_capture_forbids_stream(CUstream handle)
{
	struct CUstream_st *stream;
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&cs_lock);
	stream = cs_stream_of(handle);
	if (!stream)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (stream->capture)
		result = invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	else if (stream == stream->context->legacy)
		result = cs_capture_forbids_legacy(stream->context);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CUresult cs_capture_forbids_context(const struct CUctx_st *context)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&cs_lock);
	for (struct cs_capture *capture = captures; capture; capture = capture->next)
		if (!capture->ended && capture->lanes[0].stream->context == context)
			result = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

static CUresult begin(struct CUstream_st *stream, CUstreamCaptureMode mode)
{
	struct cs_capture *capture;

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture->graph = cs_graph_new();
	if (!capture->graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->mode = mode;
	capture->thread = pthread_self();
	capture->id = ++last_id;
	capture->lanes[0].stream = stream;
	capture->lane_count = 1;
	capture->next = captures;
	captures = capture;
	stream->capture = capture;
	stream->lane = 0;
	return CUDA_SUCCESS;
}

CS_API(cuStreamBeginCapture, 10010)(CUstream handle, CUstreamCaptureMode mode)
{
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	result = begin(cs_stream_of(handle), mode);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

/* All streams leave the capture, however it ends. */
static CUresult end(struct CUstream_st *stream, CUgraph *graph)
{
	struct cs_capture *capture = stream ? stream->capture : NULL;
	CUresult result = CUDA_SUCCESS;

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->lanes[0].stream != stream)
		return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (capture->invalid)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!cs_graph_is_joined(capture->graph, capture->lanes[0].frontier, capture->lanes[0].count))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	for (uint32_t i = 0; i < capture->lane_count; i++)
		capture->lanes[i].stream->capture = NULL;
	capture->ended = true;
	*graph = result == CUDA_SUCCESS ? capture->graph : NULL;
	return result;
}

CS_API(cuStreamEndCapture, 10000)(CUstream handle, CUgraph *graph)
{
	CUresult result;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	result = end(cs_stream_of(handle), graph);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream)
{
	if (!stream->capture)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CS_API(cuStreamIsCapturing, 10000)(CUstream handle, CUstreamCaptureStatus *status)
{
	struct CUstream_st *stream;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	stream = cs_stream_of(handle);
	if (stream)
		*status = status_of(stream);
	pthread_mutex_unlock(&cs_lock);
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph)
{
	struct CUstream_st *stream;

	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	stream = cs_stream_of(handle);
	if (stream)
		*status = status_of(stream);
	if (stream && stream->capture && id)
		*id = stream->capture->id;
	if (stream && stream->capture && graph)
		*graph = stream->capture->graph;
	pthread_mutex_unlock(&cs_lock);
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CS_API(cuStreamGetCaptureInfo, 10010)(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return capture_info(stream, status, id, NULL);
}

/* Nodes have no handles here: whoever asks for those that the next one depends on is told of none. */
CS_API(cuStreamGetCaptureInfo, 11030)(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
				      const CUgraphNode **nodes, size_t *count)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (nodes)
		*nodes = NULL;
	if (count)
		*count = 0;
	return capture_info(stream, status, id, graph);
}

CS_API(cuStreamGetCaptureInfo, 12030)(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
				      const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count)
{
	CS_ENTER(CS_NEED_CONTEXT);
	if (nodes)
		*nodes = NULL;
	if (edges)
		*edges = NULL;
	if (count)
		*count = 0;
	return capture_info(stream, status, id, graph);
}

CS_API(cuThreadExchangeStreamCaptureMode, 10010)(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = thread_mode;

	CS_ENTER(CS_NEED_INIT);
	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
