"""Words of other libraries, and what to write here: for arguments and names that scikit-learn,
implicit, LensKit, RecBole and Surprise have.

`Answering` makes every public function of a class answer an argument that it does not have, and
every name that the class lacks, by `SAY`, otherwise by the nearest own word. docs/habits.md is made
by trying each habit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fedrec.errors import UnknownArgumentError, UnknownNameError

P = ParamSpec("P")
R = TypeVar("R")

_CHOSEN = "Leave it out: the default chooses it by the noise. A paper's method takes it: "
_PAPERS = _CHOSEN + "MatrixFactorization(method='ssp2', settings={{'model."
_DESCENT = _CHOSEN + "MatrixFactorization(method='dp-gd', settings={{'model."
_OF_FRAME = "Say fedrec.Dataset.from_frame(frame, user=..., item=..., "
_RATED = _OF_FRAME + "rating=..., rating_range=(1, 5))."
_MEASURED = "Say fedrec.evaluate(model, test, k=(10, 20)).metrics."
_REMEDIES: Mapping[str, str] = {
    "Say k={value}.": (
        "n N K n_items num_items n_recs num_recommendations top top_k topk topK topn count limit "
        "list_length max_results"
    ),
    "Say seed={value}.": (
        "random_state random_seed rng rng_spec rng_seed shuffle_seed reproducibility"
    ),
    "Say model.fit(train, progress=True).": (
        "verbose show_progress display_progress progress_bar verbosity show_progressbar"
    ),
    "Leave it out: all cores work. To use fewer, start Python with `taskset`.": (
        "n_jobs num_threads num_workers workers nproc n_threads worker njobs"
    ),
    "Leave it out: training is NumPy on the processor.": (
        "use_gpu gpu_id device use_native dtype use_cg cuda to_gpu to_cpu to half gpu algorithm "
        "solver leaf_size"
    ),
    _PAPERS + "dimension': {value}}}).": (
        "factors n_factors n_components embedding_size embedding_dim latent_dim latent_factors "
        "hidden_size mf_dim rank dim dims __init__.features __init__.d no_components num_factors"
    ),
    _PAPERS + "item_ridge': {value}}}).": (
        "regularization reg reg_all reg_weight reg_bu reg_bi reg_pu reg_qi reg_param lambda_ lam "
        "l2 l2_reg weight_decay alpha_W alpha_H user_reg item_reg damping lambda_reg"
    ),
    _PAPERS + "steps': {value}}}).": (
        "iterations n_epochs epochs max_iter n_iter num_iterations num_epochs "
        "__init__.train_epochs n_iterations"
    ),
    _DESCENT + "learning_rate': {value}}}).": (
        "learning_rate lr lr_all lr_bu lr_bi lr_pu lr_qi eta0 power_t"
    ),
    "Leave it out, or, with fedrec-research, weigh clicks by method='convex-ssp', "
    "settings={{'model.click_weight': {value}}}.": "alpha confidence weight_scale",
    "Leave it out: fedrec.ItemItem keeps all neighbours and is solved by EASE.": (
        "__init__.k min_k max_k n_neighbors min_support sim_options bsl_options max_nbrs min_nbrs "
        "min_sim shrinkage shrink neighbors save_nbrs K1 B metric p radius similarity name_sim "
        "user_based"
    ),
    "Leave it out: no recipe has it.": (
        "biased init_mean init_std_dev init tol loss early_stopping batch_size train_batch_size "
        "eval_batch_size stopping_step learner optimizer warm_start calculate_training_loss "
        "negative_sampling train_neg_sample_args neg_prop verify_negative_samples user_embeddings "
        "beta_loss l1_ratio penalty validation_fraction feedback bias cg_steps dropout "
        "dropout_prob n_layers n_oversamples power_iteration_normalizer fit_intercept "
        "n_iter_no_change class_weight average eval_step valid_metric checkpoint_dir "
        "load_best_model model_file metric_params max_grad_norm patience monitor use_bias"
    ),
    "Say model.fit(train), where train is of Dataset.from_frame or a sparse matrix of "
    "users x items.": (
        "trainset train_data user_items item_users interactions dataset X data train_interactions "
        "counts weighted ratings matrix"
    ),
    "Say callbacks=[fedrec.JsonLines('rounds.jsonl')].": "callback",
    "Leave it out: a click counts once. Plays become clicks by from_frame(frame, rating='plays', "
    "click_threshold=1).": (
        "sample_weight sample_weights user_weights weight weights weight_col weights_column plays "
        "play_counts counts_column"
    ),
    "Leave it out: how clicks age is learned from their times, time=..., and charged.": (
        "decay time_decay half_life recency"
    ),
    "Say fedrec.evaluate(model, test) after fit: validation rows come with data.split().": (
        "valid valid_data eval_set eval_data saved validation_data valid_set"
    ),
    "Leave it out: a vector is always solved from the history.": (
        "recalculate_user recalculate_item react_users use_training_history user_embeddings_mode"
    ),
    "Say users={value}, or history=[...] for a new person.": (
        "userid userids user_id user_ids uid uids raw_uid inner_uid u external_user_ids "
        "recommend.user predict.user user_idx"
    ),
    "Say history=[...], item ids of one person; those of training are known by users=.": (
        "clicks recommend.user_items recommend.interactions recommend.seen_items history_items "
        "query basket rank_items.user_items items_seen liked_items user_profile "
        "explain.user_items session recommend.ratings item_history"
    ),
    "Say seen='keep' to list them, seen='drop' (the default) not to.": (
        "filter_already_liked_items filter_already_liked remove_seen exclude_known exclude_seen "
        "filter_seen filter_viewed filter_history drop_seen exclude_history exclude_interacted "
        "unseen_only exclude_train"
    ),
    "Say exclude={value}.": (
        "filter_items exclude_items blacklist remove_items items_to_exclude drop_items exclude_ids"
    ),
    "Say items={value}.": (
        "candidates candidate_items items_to_recommend_from selected_items item_pool "
        "items_to_recommend whitelist item_ids_selection allowed_items candidate_ids predict.iids "
        "predict.iid predict.item predict.item_id predict.item_ids predict.itemids"
    ),
    "Give the id first: model.similar_items({value}, k=10).": (
        "itemid item_id item_ids itemids iid raw_iid inner_iid item_idx"
    ),
    "Say recommend(history=[...], items=[...]).": "rank_items rerank",
    "Say recommend(users=[...]) or recommend(histories={{...}}).": (
        "recommend_all recommend_for_all_users recommendForAllUsers recommend_batch "
        "batch_recommend recommend_subset recommendForUserSubset recommend_products "
        "recommendProducts full_sort_predict full_sort_topk predict_top_n get_top_n "
        "recommend_for_user get_recommendations recommend_items recommend_k_items top_items "
        "topk_recommendations"
    ),
    "Say similar_items([...], k=10).": (
        "get_neighbors kneighbors most_similar neighbours similar_item get_item_neighbors "
        "item_neighbors compute_similarities sim similarities get_similar_items related_items "
        "item_similarity nearest kneighbors_graph radius_neighbors similarity_matrix "
        "radius_neighbors_graph"
    ),
    "People's vectors are their own: compare model.user_factors(histories=...).": (
        "similar_users get_user_neighbors most_similar_users user_similarity"
    ),
    "Say model.item_factors; with model.user_factors(history) it makes the scores.": (
        "components_ coef_ item_embeddings item_embedding item_norms qi item_factors_ "
        ".item_vectors factors_ V get_item_embedding item_representations item_features "
        "get_item_factors feature_importances_ components embeddings_"
    ),
    "Say model.user_factors(history).": (
        "user_embeddings_ user_embedding user_norms pu user_vectors user_representations "
        "transform fit_transform get_user_factors user_features get_user_embedding"
    ),
    "Say model.predict(users, items), or predict(frame).": (
        "predict_proba decision_function estimate rate predict_rating predict_for_user "
        "predict_on_batch predict_all predict_log_proba predict_pairs predict_batch "
        "inverse_transform score_samples forward predict_ratings fit_predict score_items"
    ),
    "Say model.predict(test), or fedrec.evaluate(model, test).": ".test",
    "Leave it out: a prediction needs users and items alone.": "r_ui clip",
    "Train again, which spends epsilon once more; items that came later need none: "
    "model.with_items(catalogue).": (
        "partial_fit partial_fit_users partial_fit_items fit_partial update retrain resume "
        "incremental_fit finetune partial_train add_items add_users train_epoch warm_fit"
    ),
    "Say model.fit(data): of a whole Dataset all rows are trained on.": "build_full_trainset",
    "Say model.fit(train).": (
        "train train_model fit_model build learn run_training fit_dataset calculate_loss is_trained"
    ),
    "Say model.save(folder), and fedrec.load(folder).": (
        "dump fileobj_or_path to_pickle save_model load_model load load_state_dict state_dict "
        "save_pretrained from_pretrained export_model write joblib serialize to_disk "
        "load_from_checkpoint get_parameters load_parameters"
    ),
    "Say model.get_params() or model.scenario().": (
        "config configuration parameters hparams hyperparameters get_config params_ params"
    ),
    "Say model.set_params(...).": (
        "set_config configure set_fit_request set_score_request set_output set_predict_request"
    ),
    "Say model.item_ids; model.guarantee and model.scenario() tell the rest.": (
        "classes_ items_ feature_names_in_ n_features_in_ get_feature_names_out items users_ "
        "item_map vocabulary item_index trainset_ n_items_ n_iter_ get_metadata_routing "
        "known_items item_ids_ item2id item_mapping"
    ),
    "Say fedrec.MatrixFactorization: alternating least squares.": (
        "AlternatingLeastSquares ALS ImplicitMF BiasedMF BiasedMFScorer ImplicitMFScorer "
        "ALSRecommender SVD SVDpp NMF FunkSVD FunkSVDScorer TruncatedSVD BPR "
        "BayesianPersonalizedRanking LightGCN LogisticMatrixFactorization NeuMF LightFM MF "
        "Recommender_ FlexMFScorer FlexMFImplicitScorer MultiVAE DMF NGCF FISM BPRMF WARP "
        "matrix_factorization MatrixFactorisation"
    ),
    "Say fedrec.ItemItem: one noised Gram of clicks, solved by EASE.": (
        "EASE EASEr SLIM SLIMElastic ItemKNN ItemKNNScorer KNNBasic KNNWithMeans KNNWithZScore "
        "KNNBaseline ItemItemRecommender CosineRecommender TFIDFRecommender BM25Recommender "
        "UserKNN UserKNNScorer NearestNeighbors UserUser ItemCF SAR SARPlus EASEScorer SLIMScorer "
        "SlopeOne CoClustering ADMMSLIM bm25_weight tfidf_weight"
    ),
    "Say fedrec.Popularity.": (
        "Pop TopPop MostPopular PopScorer PopScore PopularRecommender PopularityRecommender"
    ),
    "Say fedrec.ItemBias.": "BaselineOnly Bias BiasScorer BiasModel NormalPredictor Baseline",
    "Say fedrec.NewsRecommender.": "NRMS NAML LSTUR PrivateRec NPA",
    "Say data.split('random', seed=1).": (
        "train_test_split train_test_split_ crossfold_users leave_k_out_split sample_users "
        "split_data data_preparation leave_one_out_split split_global_time construct_testset "
        "build_testset build_anti_testset KFold ShuffleSplit LeaveOneOut PredefinedKFold folds "
        "partition_users crossfold_records sample_records LeaveOneLastItem random_split"
    ),
    "Leave it out: of the rows 80% are for training, 10% for validation and 10% for testing. For "
    "others, give from_frame(frame, test=frame_of_test_rows) and split('given').": (
        "test_size test_fraction test_ratio test_share holdout frac"
    ),
    "Leave it out: the rest is for training.": (
        "train_size train_fraction ratio_train train_percentage stratify shuffle n_splits"
    ),
    "Train once with each set of parameters on one split and compare model.score(test); "
    "folds would spend epsilon each.": (
        "cross_validate cross_val_score GridSearchCV RandomizedSearchCV param_grid cv HyperTuning"
    ),
    _MEASURED: (
        "accuracy rmse mae ndcg_at_k precision_at_k mean_average_precision_at_k AUC_at_k "
        "ranking_metrics_at_k RunAnalysis evaluator recall_at_k auc_at_k ndcg recall hit_rate "
        "precision_recall_at_k MeasurementCollector fcp mse evaluate_model test_step Evaluator"
    ),
    "Say k=10, or k=(10, 20).": "cutoffs cutoff ks at at_k k_list",
    "Say fedrec.simulate(scenario, data).": (
        "run_recbole Config create_dataset quick_start get_model get_trainer Trainer run "
        "Experiment topn_pipeline RecPipelineBuilder predict_pipeline"
    ),
    _RATED: (
        "load_from_df load_from_folds Reader from_pandas from_interactions_df from_df from_polars "
        "from_arrow from_list from_dict from_records DatasetBuilder DatasetDF from_dataframe"
    ),
    "Say fedrec.Dataset.from_file(path).": (
        "load_from_file load_builtin from_csv read_csv load_movielens fetch_movielens "
        "from_parquet read_parquet from_path open get_movielens load_movielens_df from_json"
    ),
    "Say data.to_frame().": (
        "to_df to_pandas to_polars head raw_ratings interaction_table all_ratings pandas iterrows "
        "values interaction_matrix inter_feat to_csr to_coo to_csv shape .columns ur ir"
    ),
    "Say data.num_users, num_items and len(data).": (
        "n_users n_ratings n_items_total user_num item_num inter_num user_count item_count "
        "interaction_count n_interactions num_interactions num_events nunique"
    ),
    "Say user={value}.": (
        "user_col user_column userid_col user_field USER_ID_FIELD col_user user_key "
        "from_frame.user_id from_file.user_id users_col"
    ),
    "Say item={value}.": (
        "item_col item_column itemid_col item_field ITEM_ID_FIELD col_item item_key "
        "from_frame.item_id from_file.item_id items_col"
    ),
    "Say rating={value}.": (
        "rating_col rating_column ratings_col RATING_FIELD col_rating values_col rating_field "
        "rating_key target value_col"
    ),
    "Say time={value}.": (
        "timestamp timestamp_col time_col time_column TIME_FIELD col_timestamp time_field "
        "date_col date_column"
    ),
    "Say rating_range={value}.": "rating_scale reader scale rating_limits min_max",
    "Say click_threshold={value}.": "threshold min_rating rating_threshold implicit_threshold",
    "Say method={value}.": "model recipe model_name variant algo estimator",
    "Say epsilon={value}.": "eps privacy_budget noise_multiplier target_epsilon budget",
    "Say delta={value}.": "target_delta",
    "Write the frame by its own means: frame.write_csv(file).": "output_file output_path",
    "Say explain(item, history=[...]): which clicks raised an item.": (
        "explain_item explanation get_explanation why feature_contributions"
    ),
}
SAY: Mapping[str, str] = {
    word: remedy for remedy, words in _REMEDIES.items() for word in words.split()
}
"""What to write in the place of a word; `method.word` is an argument of that method alone and comes
first; `.word` is a name. {value} is what was given."""


def remedy(
    word: str, own: Collection[str], *, method: str = "", value: object = "...", every: str = ""
) -> str:
    """What to write in the place of a word that is none of `own`.

    >>> remedy("random_state", ["seed"], value=42)
    'Say seed=42.'
    >>> remedy("historie", ["history", "k"])
    'Did you mean history? There are: history, k.'
    """
    if said := SAY.get(f"{method}.{word}", SAY.get(word, "")):
        return said.format(value=repr(value) if value != "..." else "...")
    near = get_close_matches(word.lower(), sorted(own), n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    return f"{meant}There are: {', '.join(own) or 'none'}."


def answering(method: Callable[P, R]) -> Callable[P, R]:
    """A function that answers arguments which it does not have by what to write instead.

    It raises UnknownArgumentError, which is a SettingsError and a TypeError."""
    signature = inspect.signature(method)
    own = [one for one in signature.parameters if one not in ("self", "settings", "params")]
    settings = signature.parameters.get("settings")  # whose keys are none of `SAY`
    opened = settings is not None and settings.kind is settings.VAR_KEYWORD

    def refused(failure: str, args: Any, given: Mapping[str, Any]) -> UnknownArgumentError:
        short = method.__name__
        owner = type(args[0]).__name__ if "self" in signature.parameters else ""
        name = ".".join(filter(None, (owner, short))).removesuffix(".__init__")
        if other := [word for word in given if word not in own]:
            said = remedy(other[0], own, method=short, value=given[other[0]])
            return UnknownArgumentError(f"{name} has no argument {other[0]}", said)
        named = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        place = len(signature.parameters) - len(named)
        if len(args) > place:
            extra = args[place]
            shown = type(extra).__name__ if hasattr(extra, "shape") else repr(extra)
            said = f"Name it: {', '.join(f'{one}=...' for one in named) or 'it has none'}."
            return UnknownArgumentError(f"{name} was given {shown} without a name", said)
        return UnknownArgumentError(f"{name}: {failure}", f"Its arguments are {', '.join(own)}.")

    @wraps(method)
    def asked(*args: P.args, **given: P.kwargs) -> R:
        try:
            signature.bind(*args, **given)
        except TypeError as failure:
            raise refused(str(failure), args, given) from None
        if opened and (foreign := {w: v for w, v in given.items() if w in SAY and w not in own}):
            raise refused("", args, foreign)
        return method(*args, **given)

    return asked


def unknown_name(owner: str, word: str, own: Collection[str]) -> UnknownNameError:
    """The error of a name that something lacks."""
    public = [one for one in own if not one.startswith("_")]
    return UnknownNameError(f"{owner} has no attribute {word!r}", remedy(word, public))


class _Named(type):
    """Classes that answer names which they lack, such as `load_from_df` of a data set."""

    if not TYPE_CHECKING:

        def __getattr__(cls, word: str) -> Any:
            if word.startswith("_"):  # a question of Python's own
                raise AttributeError(word)
            raise unknown_name(cls.__name__, word, dir(cls))


class Answering(metaclass=_Named):
    """Every public function of a subclass is `answering`, and names that it lacks are answered."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for name, value in list(vars(cls).items()):
            if name.startswith("_") and name != "__init__":
                continue
            if inspect.isfunction(value):
                setattr(cls, name, answering(value))
            elif isinstance(value, staticmethod):
                setattr(cls, name, staticmethod(answering(value.__func__)))

    if not TYPE_CHECKING:

        def __getattr__(self, word: str) -> Any:
            if word.startswith("_"):
                raise AttributeError(word)
            raise unknown_name(type(self).__name__, word, dir(type(self)))
