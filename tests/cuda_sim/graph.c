/* graph.c - graphs that captures made: instantiated, launched many times. */
#include "cs.h"

#include <stdlib.h>
#include <string.h>

struct node {
	struct cs_op *op; /* NULL: it only joins others */
	uint32_t lane;
	uint32_t *after;  /* earlier nodes */
	uint32_t after_count;
};

/* Nodes in the order in which they were captured, so that each comes after those that it depends on. */
struct CUgraph_st {
	struct node *nodes;
	uint32_t count, room;
	uint32_t lane_count;
	bool destroyed;
	struct CUgraph_st *next;
};

/* What CUgraphExec points to: a copy of the graph, and a stream for each lane but the first. */
struct CUgraphExec_st {
	struct CUgraph_st *graph;
	struct CUstream_st *streams[CS_LANES_MAX];
	uint64_t *numbers;            /* of each node's operation in the launch under way */
	struct CUstream_st *last;     /* where it was launched last */
	uint64_t last_number;
	bool destroyed;
	struct CUgraphExec_st *next;
};

static struct CUgraph_st *graphs;
static struct CUgraphExec_st *execs;

struct CUgraph_st *cs_graph_new(void)
{
	struct CUgraph_st *graph = calloc(1, sizeof(*graph));

	if (graph) {
		graph->next = graphs;
		graphs = graph;
	}
	return graph;
}

CUresult cs_graph_add(struct CUgraph_st *graph, uint32_t lane, struct cs_op *op, const uint32_t *after,
		      uint32_t after_count, uint32_t *index)
{
	struct node *node;

	if (graph->count == graph->room) {
		uint32_t room = graph->room * 2 + 64;
		struct node *nodes = realloc(graph->nodes, room * sizeof(*nodes));

		if (!nodes)
			goto free_op;
		graph->nodes = nodes;
		graph->room = room;
	}
	node = &graph->nodes[graph->count];
	node->after = malloc(after_count * sizeof(*after) + 1);
	if (!node->after)
		goto free_op;
	memcpy(node->after, after, after_count * sizeof(*after));
	node->after_count = after_count;
	node->op = op;
	node->lane = lane;
	graph->lane_count = lane >= graph->lane_count ? lane + 1 : graph->lane_count;
	*index = graph->count++;
	return CUDA_SUCCESS;
free_op:
	free(op);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

bool cs_graph_is_joined(const struct CUgraph_st *graph, const uint32_t *ends, uint32_t end_count)
{
	bool *reached = calloc(graph->count + 1, 1), joined = true;

	for (uint32_t i = 0; reached && i < end_count; i++)
		reached[ends[i]] = true;
	for (uint32_t i = graph->count; reached && i-- > 0;) {
		const struct node *node = &graph->nodes[i];

		for (uint32_t k = 0; reached[i] && k < node->after_count; k++)
			reached[node->after[k]] = true;
		joined = joined && (reached[i] || !node->op);
	}
	free(reached);
	return reached && joined;
}

static struct CUgraph_st *graph_of(CUgraph handle)
{
	struct CUgraph_st *graph = graphs;

	while (graph && graph != handle)
		graph = graph->next;
	return graph && !graph->destroyed ? graph : NULL;
}

static struct CUgraphExec_st *exec_of(CUgraphExec handle)
{
	struct CUgraphExec_st *exec = execs;

	while (exec && exec != handle)
		exec = exec->next;
	return exec && !exec->destroyed ? exec : NULL;
}

static struct cs_op *op_copy(const struct cs_op *op)
{
	struct cs_op *copy = malloc(op->bytes);

	if (copy)
		memcpy(copy, op, op->bytes);
	return copy;
}

static CUresult instantiate(struct CUgraphExec_st **made, const struct CUgraph_st *graph)
{
	struct CUgraphExec_st *exec = calloc(1, sizeof(*exec));
	CUresult result = CUDA_SUCCESS;

	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->graph = calloc(1, sizeof(*exec->graph));
	exec->numbers = calloc(graph->count + 1, sizeof(*exec->numbers));
	if (!exec->graph || !exec->numbers)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t i = 0; result == CUDA_SUCCESS && i < graph->count; i++) {
		const struct node *node = &graph->nodes[i];
		struct cs_op *op = node->op ? op_copy(node->op) : NULL;
		uint32_t index;

		if (node->op && !op)
			result = CUDA_ERROR_OUT_OF_MEMORY;
		else
			result = cs_graph_add(exec->graph, node->lane, op, node->after, node->after_count, &index);
	}
	exec->next = execs; /* also where it is incomplete: it is destroyed then */
	exec->destroyed = result != CUDA_SUCCESS;
	execs = exec;
	*made = exec;
	return result;
}

static CUresult instantiate_call(CUgraphExec *exec, CUgraph graph_handle, unsigned long long flags)
{
	struct CUgraph_st *graph;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!exec || flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&cs_lock);
	graph = graph_of(graph_handle);
	if (graph)
		result = instantiate(exec, graph);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuGraphInstantiateWithFlags, 11040)(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	CS_ENTER(CS_NEED_CONTEXT);
	return instantiate_call(exec, graph, flags);
}

/* The stream of a lane in this launch; the first is the one that it is launched on. */
static struct CUstream_st *lane_stream(struct CUgraphExec_st *exec, uint32_t lane, struct CUstream_st *stream)
{
	if (!lane)
		return stream;
	if (!exec->streams[lane])
		exec->streams[lane] = cs_stream_new(stream->context, CU_STREAM_NON_BLOCKING, 0);
	return exec->streams[lane];
}

static bool push_node(struct CUgraphExec_st *exec, uint32_t index, struct CUstream_st *stream,
		      const struct cs_op *origin)
{
	const struct node *node = &exec->graph->nodes[index];
	struct CUstream_st *own = lane_stream(exec, node->lane, stream);
	struct cs_op *op;

	for (uint32_t i = 0; i < node->after_count; i++) {
		uint32_t before = node->after[i];
		struct CUstream_st *other = lane_stream(exec, exec->graph->nodes[before].lane, stream);

		if (other != own && !cs_await(own, other, exec->numbers[before]))
			return false;
	}
	if (node->op) {
		op = op_copy(node->op);
		if (!op)
			return false;
		op->thread = origin->thread;
		op->step = origin->step;
		cs_push(own, op);
	}
	exec->numbers[index] = own->submitted;
	return true;
}

/* Launches of one exec follow each other. Nodes run on the streams of their lanes, ordered as they were captured. */
static CUresult launch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
	struct cs_op origin;
	bool enough;

	cs_race_step(&origin.thread, &origin.step);
	enough = cs_order_by_legacy(stream);
	if (enough && exec->last && exec->last != stream)
		enough = cs_await(stream, exec->last, exec->last_number);
	for (uint32_t lane = 1; enough && lane < exec->graph->lane_count; lane++) {
		struct CUstream_st *other = lane_stream(exec, lane, stream);

		enough = other && cs_await(other, stream, stream->submitted);
	}
	for (uint32_t i = 0; enough && i < exec->graph->count; i++)
		enough = push_node(exec, i, stream, &origin);
	for (uint32_t lane = 1; enough && lane < exec->graph->lane_count; lane++)
		enough = cs_await(stream, exec->streams[lane], exec->streams[lane]->submitted);
	exec->last = stream;
	exec->last_number = stream->submitted;
	return enough ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CS_API(cuGraphLaunch, 10000)(CUgraphExec exec_handle, CUstream stream_handle)
{
	struct CUgraphExec_st *exec;
	struct CUstream_st *stream;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	CS_ENTER(CS_NEED_CONTEXT);
	pthread_mutex_lock(&cs_lock);
	exec = exec_of(exec_handle);
	stream = cs_stream_of(stream_handle);
	if (exec && !stream)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (exec && stream->capture)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* child graphs are not simulated */
	else if (exec)
		result = launch(exec, stream);
	pthread_mutex_unlock(&cs_lock);
	return result;
}

CS_API(cuGraphUpload, 11010)(CUgraphExec exec_handle, CUstream stream)
{
	bool known;

	CS_ENTER(CS_NEED_CONTEXT);
	pthread_mutex_lock(&cs_lock);
	known = exec_of(exec_handle) && cs_stream_of(stream);
	pthread_mutex_unlock(&cs_lock);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CS_API(cuGraphGetNodes, 10000)(CUgraph graph_handle, CUgraphNode *nodes, size_t *count)
{
	struct CUgraph_st *graph;

	CS_ENTER(CS_NEED_CONTEXT);
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	if (nodes)
		return CUDA_ERROR_NOT_SUPPORTED; /* nodes have no handles here; they can be counted */
	pthread_mutex_lock(&cs_lock);
	graph = graph_of(graph_handle);
	*count = 0;
	for (uint32_t i = 0; graph && i < graph->count; i++)
		*count += graph->nodes[i].op != NULL;
	pthread_mutex_unlock(&cs_lock);
	return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CS_API(cuGraphDestroy, 10000)(CUgraph graph_handle)
{
	struct CUgraph_st *graph;

	CS_ENTER(CS_NEED_CONTEXT);
	pthread_mutex_lock(&cs_lock);
	graph = graph_of(graph_handle);
	if (graph)
		graph->destroyed = true;
	pthread_mutex_unlock(&cs_lock);
	return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What is launched still runs. */
CS_API(cuGraphExecDestroy, 10000)(CUgraphExec exec_handle)
{
	struct CUgraphExec_st *exec;

	CS_ENTER(CS_NEED_CONTEXT);
	pthread_mutex_lock(&cs_lock);
	exec = exec_of(exec_handle);
	for (uint32_t lane = 1; exec && lane < CS_LANES_MAX; lane++)
		if (exec->streams[lane])
			cs_stream_destroy(exec->streams[lane]);
	if (exec)
		exec->destroyed = true;
	pthread_mutex_unlock(&cs_lock);
	return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
